"""`python -m keras_vit.cli`."""

from keras_vit.cli import main

main()
