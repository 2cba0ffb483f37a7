"""What tests of lodeq and of its users share."""
