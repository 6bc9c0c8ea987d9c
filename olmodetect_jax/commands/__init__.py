"""What each command of the command line does; `olmodetect_jax.cli` only reads the options."""
