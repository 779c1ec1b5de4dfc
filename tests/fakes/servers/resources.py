"""Fixed resources and templates of them; one tool changes the list. FAKE_MORE is listed as one more
fixed resource."""

import os

from rpc import Refused, Server, text, tool

GUIDE = {
    "uri": "docs://guide",
    "name": "guide",
    "description": "How to begin.",
    "mimeType": "text/plain",
    "size": 5,
}
PIXEL = {"uri": "docs://pixel", "name": "pixel", "mimeType": "image/png"}
ISSUE = {
    "uriTemplate": "repo://{owner}/issues/{number}",
    "name": "issue",
    "description": "One issue.",
}
BLOB = "iVBORw0KGgo="


class Resources(Server):
    def __init__(self):
        super().__init__([tool("change")], self.called, name="resources", threaded=False)
        self.capabilities["resources"] = {"listChanged": True}
        more = os.environ.get("FAKE_MORE")
        self.resources = [GUIDE, PIXEL, *([{"uri": more, "name": "more"}] if more else [])]

    def called(self, context):
        self.resources = [{**GUIDE, "description": "How to begin anew."}, *self.resources[1:]]
        self.changed("resources")
        return text("done")

    def answer(self, request):
        method = request["method"]
        params = request.get("params") or {}
        whole = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
        if method == "resources/list":
            return whole | {"resources": self.resources}
        if method == "resources/templates/list":
            return whole | {"resourceTemplates": [ISSUE]}
        if method == "resources/read":
            return whole | {"contents": [self.content(params["uri"])]}
        return super().answer(request)

    def content(self, uri):
        if uri == "docs://pixel":
            return {"uri": uri, "mimeType": "image/png", "blob": BLOB}
        if uri == "repo://me/issues/404":
            raise Refused(-32602, "There is no such issue.", {"uri": uri})
        return {
            "uri": uri,
            "mimeType": "text/plain",
            "text": f"{uri} of {os.environ.get('FAKE_WHO', 'somebody')}",
        }


if __name__ == "__main__":
    Resources().run()
