"""The pages: what each shows, and the actions that its forms ask for."""
