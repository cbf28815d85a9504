from antiphon.server._access import ServerLimits as ServerLimits
from antiphon.server._serving import RunningServer as RunningServer
from antiphon.server._serving import ServeSettings as ServeSettings
from antiphon.server._serving import serving as serving
