from antiphon.agents._config import WebConfig as WebConfig
from antiphon.agents.tools._builtin import builtin_tools as builtin_tools
from antiphon.agents.tools._builtin import knowledge_base as knowledge_base
from antiphon.agents.tools._builtin import memory_retrieval as memory_retrieval
from antiphon.agents.tools._builtin import web_fetch as web_fetch
from antiphon.agents.tools._builtin import web_search as web_search
from antiphon.agents.tools._calculator import calculator as calculator
from antiphon.agents.tools._files import file_tools as file_tools
