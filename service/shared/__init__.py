"""Modules that several packages of ``service`` share. It imports none of them."""
