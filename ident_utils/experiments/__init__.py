"""Measuring functions, one module a notebook: models and texts in, tidy tables and measurements out."""
