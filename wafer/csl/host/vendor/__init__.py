"""What the scripts of public programs import, under the names of the vendor's packages."""
