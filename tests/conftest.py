"""What every test shares."""

import hypothesis

# A deadline per example measures the machine, not the code.
hypothesis.settings.register_profile("lodeq", deadline=None)
hypothesis.settings.load_profile("lodeq")
