"""Client of the HTTP interface of forge-bridge.

`Bridge` and `AsyncBridge` submit dispatches and follow them, `ForgeSDK` and `AsyncForgeSDK` are the same for runs, and
`verify_webhook` checks callbacks. Answers are the JSON of the bridge, typed by the `TypedDict`s of `forge_bridge.wire`.
"""

from ._async.client import AsyncBridge as AsyncBridge
from ._async.forge import AsyncForgeSDK as AsyncForgeSDK
from ._async.management import AsyncManagement as AsyncManagement
from ._sync.client import Bridge as Bridge
from ._sync.forge import ForgeSDK as ForgeSDK
from ._sync.management import Management as Management
from .errors import BridgeError as BridgeError
from .page import AwaitedRequest as AwaitedRequest
from .page import Page as Page
from .page import StartedRun as StartedRun
from .webhook import WebhookError as WebhookError
from .webhook import verify_webhook as verify_webhook
from .wire import *
