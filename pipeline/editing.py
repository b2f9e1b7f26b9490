"""Changes of a conversation, and what its client is told of them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from .conversation import Conversation
from .events import (
    AudioCommitted,
    CreateItem,
    DeleteItem,
    Item,
    ItemAdded,
    ItemDeleted,
    ItemDone,
    ItemRetrieved,
    Output,
    RetrieveItem,
)


def edit(
    conversation: Conversation,
    command: CreateItem | RetrieveItem | DeleteItem,
    new_id: Callable[[str], str],
) -> Sequence[Output]:
    """Do what the client asks. Raises BadRequest and NotFound, and then nothing has changed."""
    match command:
        case CreateItem():
            item = replace(command.item, id=command.item.id or new_id("item"))
            previous = conversation.add(item, command.previous_item_id)
            return [ItemAdded(item, previous), ItemDone(item, previous)]
        case RetrieveItem():
            return [ItemRetrieved(conversation.get(command.item_id))]
        case DeleteItem():
            conversation.delete(command.item_id)
            return [ItemDeleted(command.item_id)]


def entered(conversation: Conversation, item: Item) -> Sequence[Output]:
    """The user's audio becomes an item."""
    previous = conversation.append(item)
    return [AudioCommitted(item.id, previous), ItemAdded(item, previous), ItemDone(item, previous)]
