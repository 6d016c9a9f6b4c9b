"""One file per verb of the command line; each holds the public function behind it, too."""
