"""Values, their encoding, policies and reports."""
