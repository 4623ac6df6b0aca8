"""`keras-vit`, started outside the package.

Where this module is imported, `import keras_vit` imports no Keras, which takes seconds:
help, completion, errors and commands that only print constants need none.
"""

import os
import signal
import sys


def main() -> None:
    """Runs the command line."""
    # TensorFlow's C++ logs processors, and a missing GPU as an error.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    # A KeyboardInterrupt inside an import can be lost (Python ignores one in a weak
    # reference's callback): until a command runs, Ctrl-C ends the process.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        from keras_vit.cli import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    # Under `python -m` this file is `__main__`; keras_vit looks for its own name.
    import keras_vit_command

    keras_vit_command.main()
