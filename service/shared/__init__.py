"""What several packages of ``service`` use. It imports none of them."""
