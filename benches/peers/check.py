"""Asks each proxy a few requests before it is measured, so that no figure is of an error page."""
import http.client, random, ssl

import load
from scenarios import KEYS

TLS = ("TLSv1.3", "TLS_AES_128_GCM_SHA256")


class CheckError(Exception):
    """A proxy does not do what its scenario asks for."""


def connect(scenario, port):
    if not scenario.tls:
        return http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return http.client.HTTPSConnection("127.0.0.1", port, timeout=10, context=context)


def ask(link, scenario, key):
    """One request as the load makes it. Gives its status and the length of its body."""
    method, body = ("POST", b"z" * 10240) if scenario.mode == "post" else ("GET", None)
    link.request(method, scenario.path, body, {"X-Api-Key": key} if scenario.mode == "keys" else {})
    answer = link.getresponse()
    return answer.status, len(answer.read())


def check_answer(scenario, port, cores, place):
    """Before the load: the right answer, over the right TLS. That HTTP/2 is spoken h2load says, see load.py."""
    if scenario.tls:
        seen = load.shake_hands(port, "h2" if "h2" in scenario.traits else "http/1.1", cores, place)
        if (seen["version"], seen["cipher"]) != TLS:
            raise CheckError(f"speaks {seen['version']} with {seen['cipher']}, not {TLS[0]} with {TLS[1]}")
    if scenario.load == "h2load":
        return
    link = connect(scenario, port)
    try:
        # The load has no such key.
        status, size = ask(link, scenario, "first-of-all")
    except (OSError, http.client.HTTPException) as error:
        raise CheckError(f"answered nothing: {error!r}") from None
    finally:
        link.close()
    if (status, size) != (200, scenario.body):
        raise CheckError(f"answered {status} with {size} bytes, not 200 with {scenario.body}")


def check_refusals(scenario, port):
    """When the load has asked with every key: a refusal is a 429. results.py sees to it that nearly all are refused."""
    link = connect(scenario, port)
    statuses = [ask(link, scenario, f"key-{random.randrange(1, KEYS) * 7919 % 100_000_000:08d}")[0] for _ in range(50)]
    link.close()
    if statuses.count(429) < 45:
        raise CheckError(f"does not refuse by 429: {sorted(set(statuses))}")
