from antiphon.agents.models._named import model as model
from antiphon.agents.models._script import Call as Call
from antiphon.agents.models._script import Rule as Rule
from antiphon.agents.models._script import Script as Script
from antiphon.agents.models._script import Turn as Turn
from antiphon.agents.models._scripted import ScriptedModel as ScriptedModel
