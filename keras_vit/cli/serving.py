"""`keras-vit serve`."""

from pathlib import Path
from typing import Annotated

import typer

from keras_vit.arguments import counted
from keras_vit.cli.fields import given
from keras_vit.cli.shell import app, console, errors

CURL = """\
(printf '{{"instances": [{{"b64": "'
  base64 < photo.jpg | tr -d '\\n'; printf '"}}]}}') |
  curl -d @- http://{address}/v1/models/{name}:predict"""


@app.command(epilog="Example: keras-vit serve exported --batching")
def serve(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="OUT", help="Folder of versions written by `export`: OUT/1, ..."
        ),
    ],
    name: Annotated[
        str | None,
        typer.Option(help="Name of the model in the URL [default: the name of OUT]."),
    ] = None,
    version: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="The only version to serve [default: always the newest].",
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(help="Interface to listen on; 0.0.0.0 accepts all hosts.")
    ] = "localhost",
    port: Annotated[
        int, typer.Option(min=1, max=65535, help="Port of REST and the web page.")
    ] = 8501,
    grpc_port: Annotated[
        int, typer.Option(min=1, max=65535, help="Port of gRPC.")
    ] = 8500,
    batching: Annotated[
        bool, typer.Option("--batching", help="Run concurrent requests together.")
    ] = False,
    max_batch_size: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=2**16,
            help="With --batching: largest number of images to run together "
            "[default: 32].",
        ),
    ] = None,
    batch_timeout_micros: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=10**9,
            help="With --batching: microseconds to wait for more requests "
            "[default: 2000].",
        ),
    ] = None,
    max_request_mib: Annotated[
        int, typer.Option(min=1, max=2047, help="Largest size of a request in MiB.")
    ] = 32,
    max_request_seconds: Annotated[
        int, typer.Option(min=1, help="Longest time of a request in seconds.")
    ] = 30,
) -> None:
    """Serve an export over REST and gRPC.

    The protocols are those of TensorFlow Serving. Warm-up requests run before the
    server accepts requests. Without --version it serves the newest version that can be
    loaded and checks for a newer one every second.
    """
    from keras_vit.serving import server
    from keras_vit.serving.servable import Batching, Servable
    from keras_vit.serving.versions import Versions

    batching_options = {
        "--max-batch-size": max_batch_size,
        "--batch-timeout-micros": batch_timeout_micros,
    }
    names = [name for name, value in batching_options.items() if value is not None]
    if names and not batching:
        raise ValueError(
            f"Expected {', '.join(batching_options)} with --batching. "
            f"Received: {', '.join(names)} without --batching"
        )
    options = given(
        max_batch_size=max_batch_size, batch_timeout_micros=batch_timeout_micros
    )
    batches = Batching(**options) if batching else None
    refresh = None
    if version is None:
        versions = Versions(path, batches, errors.print)
        servable, warmed, refresh = versions.current, versions.played, versions.refresh
    else:
        servable = Servable(path, version, batches)
        warmed = servable.warm_up()
    name = name or path.resolve().name

    def ready() -> None:
        rest = server.address(host, port)
        requests = counted(warmed, "warm-up request")
        console.print(f"ready: {name} from {servable.folder}, after {requests}")
        console.print(f"page:  http://{rest}/")
        console.print(f"gRPC:  {server.address(host, grpc_port)}")
        console.print(f"REST:\n{CURL.format(address=rest, name=name)}")
        console.print("To stop the server, press Ctrl-C.")

    server.serve(
        servable,
        name=name,
        host=host,
        port=port,
        grpc_port=grpc_port,
        threads=2 * batches.max_batch_size if batches else None,
        limits=server.Limits(
            max_request_bytes=max_request_mib * 2**20,
            max_total_bytes=max(2**29, max_request_mib * 2**20),
            max_request_seconds=max_request_seconds,
        ),
        refresh=refresh,
        ready=ready,
    )
