//! A process that speaks the protocol by hand, and so may say anything.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::net::{RecvFlags, SendFlags};
use serde_json::Value;
use xroce_api::Request;
use xroce_api::message::{CqMade, QpMade};
use xroce_api::message::{Memory, Path as Way, PieceOf};
use xroce_api::{GidEntry, Mr};
use xroce_control::layout;
use xroce_control::socket::{self, Kind, Message, MessageError};
use xroce_proto::memory::{Access, Pd};
use xroce_proto::qp::{QpAttr, QpInit, QpState};
use xroce_shm::{DIRTY_MAX, DirtySet, Piece, Region};
use xroce_wire::newtypes::{PathMtu, Psn, Va};
use xroce_wire::path::{AhAttr, Flow};

/// The daemon has had enough, for this reason.
#[derive(Debug)]
pub(crate) struct Closed(pub(crate) String);

pub(crate) struct Mock {
    pub(crate) socket: OwnedFd,
}

impl Mock {
    pub(crate) fn connect(path: &Path) -> Self {
        let socket = socket::connect_to(path).unwrap();
        Self { socket }
    }

    pub(crate) fn raw(&self, bytes: &[u8]) -> Result<(), Closed> {
        let sent = rustix::net::send(&self.socket, bytes, SendFlags::NOSIGNAL);
        sent.map(drop).map_err(|e| Closed(e.to_string()))
    }

    pub(crate) fn send<T: serde::Serialize>(
        &self,
        request: &T,
        fds: &[BorrowedFd<'_>],
    ) -> Result<Message, Closed> {
        let sent = socket::send(&self.socket, Kind::Request, request, fds);
        if let Err(error) = sent
            && !matches!(error, MessageError::Closed)
        {
            return Err(Closed(error.to_string()));
        }
        self.hear()
    }

    /// What the daemon says next.
    pub(crate) fn hear(&self) -> Result<Message, Closed> {
        match socket::receive(&self.socket, RecvFlags::empty()) {
            Ok(message) if message.kind == Kind::Farewell => {
                let said: Value = message.body().unwrap();
                Err(Closed(said["text"].as_str().unwrap().to_owned()))
            }
            Ok(message) => Ok(message),
            Err(error) => Err(Closed(error.to_string())),
        }
    }

    pub(crate) fn ask<T: serde::de::DeserializeOwned>(
        &self,
        request: &Request,
        fds: &[BorrowedFd<'_>],
    ) -> (T, Vec<OwnedFd>) {
        let message = self.send(request, fds).unwrap();
        assert_eq!(message.kind, Kind::Reply, "{:?}", message.body::<Value>());
        (message.body().unwrap(), message.fds)
    }
}

fn map(fd: OwnedFd, len: u64) -> Region {
    let piece = Piece { fd, offset: 0, len };
    Region::from_pieces(vec![piece]).unwrap()
}

/// One that has a queue pair connected to itself, and all memory it shares with the daemon.
pub(crate) struct Settled {
    pub(crate) mock: Mock,
    pub(crate) session: Region,
    pub(crate) kick: OwnedFd,
    pub(crate) set: DirtySet,
    pub(crate) cq: (CqMade, Region),
    pub(crate) qp: (QpMade, Region),
    pub(crate) mr: (Mr, Region),
    pub(crate) pd: Pd,
}

impl Settled {
    pub(crate) fn new(path: &Path) -> Self {
        let mock = Mock::connect(path);
        let program = "mock".to_owned();
        let _: (Value, _) = mock.ask(&Request::Hello { program }, &[]);
        let (_, mut fds): (Value, _) = mock.ask(&Request::Open { device: None }, &[]);
        let (_events, kick, file) = (fds.pop(), fds.pop().unwrap(), fds.pop().unwrap());
        let session = map(file, layout::session_bytes().unwrap());
        let (pd, _): (Pd, _) = mock.ask(&Request::AllocPd, &[]);
        let (channel, _): (u32, _) = mock.ask(&Request::CreateChannel, &[]);
        let depth = 64;
        let (cq, mut fds): (CqMade, _) = mock.ask(&Request::CreateCq { depth, channel }, &[]);
        let ring = map(fds.pop().unwrap(), layout::cq(cq.ring).unwrap().bytes());
        let init = QpInit::rc(pd, cq.cq, cq.cq);
        let (qp, mut fds): (QpMade, _) = mock.ask(&Request::CreateQp { init }, &[]);
        let bytes = layout::work_ring(qp.send).unwrap().bytes()
            + layout::work_ring(qp.recv.unwrap()).unwrap().bytes();
        let rings = map(fds.pop().unwrap(), bytes);
        let mr = register(&mock, pd);
        let set = DirtySet::new(&session, layout::set_at(0).unwrap(), DIRTY_MAX).unwrap();
        let settled = Self {
            mock,
            session,
            kick,
            set,
            cq: (cq, ring),
            qp: (qp, rings),
            mr,
            pd,
        };
        settled.connect();
        settled
    }

    fn connect(&self) {
        let all = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let (gids, _): (Vec<(u32, GidEntry)>, _) = self.mock.ask(&Request::Gids, &[]);
        let qpn = self.qp.0.qpn;
        let rtr = QpAttr {
            path_mtu: Some(PathMtu::Mtu1024),
            dest_qpn: Some(qpn),
            rq_psn: Some(Psn::new(0)),
            max_dest_rd_atomic: Some(4),
            min_rnr_timer: xroce_wire::syndrome::RnrTimer::new(12),
            ..QpAttr::state(QpState::Rtr)
        };
        let way = Way {
            attr: AhAttr::to(gids[0].1.gid),
            flow: Flow::Connected {
                local: qpn,
                peer: qpn,
            },
        };
        for (attr, path) in [
            (QpAttr::init(all), None),
            (rtr, Some(way)),
            (QpAttr::rts(Psn::new(0)), None),
        ] {
            let attr = Box::new(attr);
            let request = Request::ModifyQp { qpn, attr, path };
            let (): () = self.mock.ask(&request, &[]).0;
        }
    }

    /// Wakes the daemon, whether it sleeps or not.
    pub(crate) fn ring(&self) {
        let _ = self.set.mark(self.qp.0.number);
        let _ = rustix::io::write(&self.kick, &1u64.to_ne_bytes());
    }

    pub(crate) fn regions(&self) -> [&Region; 3] {
        [&self.session, &self.cq.1, &self.qp.1]
    }
}

pub(crate) fn register(mock: &Mock, pd: Pd) -> (Mr, Region) {
    let region = Region::anonymous(8192).unwrap();
    let memory = Memory {
        pieces: vec![PieceOf {
            offset: 0,
            len: 8192,
        }],
        lead: 0,
        len: 8192,
        iova: Va::new(0x1000),
        across: None,
    };
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    let request = Request::RegMr { pd, access, memory };
    let fd = region.fd().unwrap();
    let (mr, _): (Mr, _) = mock.ask(&request, &[fd.as_fd()]);
    (mr, region)
}
