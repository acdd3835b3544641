//! One request, all its answers: the little of rtnetlink that [`super`] needs.

use std::io;

use netlink_packet_core::{
    NLM_F_DUMP, NLM_F_REQUEST, NetlinkBuffer, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};

/// Bytes of `struct nlmsghdr`.
const HEADER_LEN: usize = 16;

/// Asks for one object.
pub(super) fn get(message: RouteNetlinkMessage) -> io::Result<Option<RouteNetlinkMessage>> {
    Ok(request(message, 0)?.into_iter().next())
}

/// Asks for a whole table.
pub(super) fn dump(message: RouteNetlinkMessage) -> io::Result<Vec<RouteNetlinkMessage>> {
    request(message, NLM_F_DUMP)
}

fn request(message: RouteNetlinkMessage, flags: u16) -> io::Result<Vec<RouteNetlinkMessage>> {
    let mut socket = Socket::new(NETLINK_ROUTE)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;

    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST | flags;
    header.sequence_number = 1;
    let mut request = NetlinkMessage::new(header, NetlinkPayload::from(message));
    request.finalize();
    let mut bytes = vec![0; request.buffer_len()];
    request.serialize(&mut bytes);
    socket.send(&bytes, 0)?;

    let mut answers = Vec::new();
    loop {
        // The kernel answers before `send` returns or not at all, so this does not wait.
        let (datagram, _) = socket.recv_from_full()?;
        if collect(&datagram, &mut answers)? || flags & NLM_F_DUMP == 0 {
            return Ok(answers);
        }
    }
}

/// Appends the messages of one datagram; whether the last of a table was among them.
fn collect(mut datagram: &[u8], answers: &mut Vec<RouteNetlinkMessage>) -> io::Result<bool> {
    while datagram.len() >= HEADER_LEN {
        let Ok(length) = NetlinkBuffer::new_checked(&datagram).map(|b| b.length()) else {
            break;
        };
        // A message of a kind or attribute the parser does not know is left out, not an error.
        match NetlinkMessage::<RouteNetlinkMessage>::deserialize(datagram).map(|m| m.payload) {
            Ok(NetlinkPayload::Done(_)) => return Ok(true),
            Ok(NetlinkPayload::Error(error)) if error.code.is_none() => return Ok(true),
            Ok(NetlinkPayload::Error(error)) => return Err(error.to_io()),
            Ok(NetlinkPayload::InnerMessage(message)) => answers.push(message),
            Ok(_) | Err(_) => {}
        }
        let aligned = usize::try_from(length)
            .unwrap_or(usize::MAX)
            .next_multiple_of(4);
        datagram = datagram.get(aligned.max(HEADER_LEN)..).unwrap_or_default();
    }
    Ok(false)
}
