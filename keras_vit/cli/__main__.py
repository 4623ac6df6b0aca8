"""`python -m keras_vit.cli`."""

from keras_vit.cli import main

if __name__ == "__main__":
    main()
