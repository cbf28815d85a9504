"""How much Hypothesis tries: a little, and always the same, in `make test`; a lot, and ever new, in `make chaos`."""

import os

from hypothesis import HealthCheck, Phase, settings

_QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large]

settings.register_profile("default", max_examples=200, deadline=None, suppress_health_check=_QUIET, derandomize=True)
settings.register_profile("quick", max_examples=50, deadline=None, suppress_health_check=_QUIET, phases=[Phase.generate])
settings.register_profile("long", max_examples=20_000, deadline=None, suppress_health_check=_QUIET)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))
