"""Models and functions of users, named ``module:function`` in a run file."""
