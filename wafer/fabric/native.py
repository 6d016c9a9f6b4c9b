"""stub"""


def available():
    return False
