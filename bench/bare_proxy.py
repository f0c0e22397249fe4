"""`python -m bench.bare_proxy --upstream URL`: what a proxy costs that records nothing.

The shortest pass-through that aiohttp's own documentation leads to; `turnlog proxy` is measured
beside it. It prints its URL and serves until it is ended.
"""

import asyncio
import sys
from argparse import ArgumentParser

import aiohttp
from aiohttp import web

_HOP = frozenset(("host", "connection", "transfer-encoding", "content-length", "keep-alive"))


async def _serve(upstream: str) -> None:
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, auto_decompress=False) as session:

        async def handle(request: web.Request) -> web.StreamResponse:
            headers = {n: v for n, v in request.headers.items() if n.lower() not in _HOP}
            asked = session.request(
                request.method,
                upstream + request.raw_path,
                headers=headers,
                data=await request.read(),
            )
            async with asked as answer:
                passed = {n: v for n, v in answer.headers.items() if n.lower() not in _HOP}
                response = web.StreamResponse(status=answer.status, headers=passed)
                await response.prepare(request)
                async for piece in answer.content.iter_any():
                    await response.write(piece)
                await response.write_eof()
                return response

        app = web.Application(client_max_size=64 << 20)
        app.router.add_route("*", "/{path:.*}", handle)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        sys.stdout.write(f"http://127.0.0.1:{runner.addresses[0][1]}\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


def main() -> None:
    """Read the command line and serve."""
    parser = ArgumentParser(prog="python -m bench.bare_proxy", description=__doc__)
    parser.add_argument("--upstream", required=True)
    asyncio.run(_serve(parser.parse_args().upstream))


if __name__ == "__main__":
    main()
