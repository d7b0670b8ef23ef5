"""Of connections without a token the oldest is closed for a new one."""

from wherefrom.web.connections import Connections


class Connection:
    """What the register uses of a connection."""

    def __init__(self, peer, let_in=False):
        self.peer, self.let_in, self.closed = peer, let_in, False

    def close(self):
        self.closed = True


def closed(connections, opened):
    """Which of some connections are closed once all are open."""
    for connection in opened:
        connections.add(connection)
    return [i for i, connection in enumerate(opened) if connection.closed]


def test_the_oldest_is_closed_beyond_the_limit_for_all():
    three = [Connection(str(i)) for i in range(3)]
    assert closed(Connections(most=3, most_of_peer=2), three) == []
    assert closed(Connections(most=3, most_of_peer=2), [*three, Connection("3")]) == [0]


def test_the_oldest_of_an_address_is_closed_beyond_the_limit_for_one():
    opened = [Connection(peer) for peer in ("a", "b", "b")]
    assert closed(Connections(most=9, most_of_peer=2), opened) == []
    assert closed(Connections(most=9, most_of_peer=2), [*opened, Connection("b")]) == [1]


def test_connections_that_were_let_in_do_not_count_and_stay_open():
    opened = [Connection("a", let_in=True) for _ in range(5)]
    assert closed(Connections(most=1, most_of_peer=1), [*opened, Connection("a")]) == []


def test_a_connection_that_has_ended_makes_room():
    connections, first = Connections(most=1), Connection("a")
    connections.add(first)
    connections.remove(first)
    assert closed(connections, [Connection("b")]) == []
    assert not first.closed
