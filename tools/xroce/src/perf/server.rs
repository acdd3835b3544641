//! `xroce perf server`: does what clients ask, one after another.

use std::io::{ErrorKind, Write};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration as StdDuration;

use anyhow::{Context, Result, anyhow, bail};
use xroce_engine::clock;
use xroce_proto::time::Duration;
use xroce_wire::newtypes::{Gid, PathMtu};

use crate::perf::args::{Backend, Poll, PortArgs, ServerArgs};
use crate::perf::device::ports::ports;
use crate::perf::device::verbs::VerbsDevice;
use crate::perf::device::{self, Device, User};
use crate::perf::measure::answer::{self, Start};
use crate::perf::measure::flow::Flow;
use crate::perf::measure::pattern::Pattern;
use crate::perf::measure::usage::Gauge;
use crate::perf::peer::channel::{Channel, SILENCE};
use crate::perf::peer::compat::{self, Job, Line};
use crate::perf::peer::conversation::{Conversation, listen_only, unexpected};
use crate::perf::peer::message::{Lane, Message, check_gid, check_path_mtu, one_line};
use crate::perf::plan::Plan;
use crate::perf::server_ports::ServerPorts;
use crate::stop::{self, Interrupted};

/// Pause between two looks for a client.
const NAP: StdDuration = StdDuration::from_millis(10);
/// A client says hello within this time.
const HELLO: Duration = Duration::from_millis(3_000);

/// Runs the command.
///
/// # Errors
/// One line that says what is wrong and what to do. The misfortune of one client is no error:
/// it is reported on standard error, and the next one is served.
pub(crate) fn run(args: &ServerArgs, out: &mut dyn Write) -> Result<()> {
    let service = Service::new(args)?;
    let all = ports(&args.port_args, &args.several, &args.daemon)?;
    let (first, several) = match all.as_slice() {
        [] => bail!("no port"),
        [first, more @ ..] => (first, !more.is_empty()),
    };
    let listener = listen(args)?;
    // With an address known beforehand the port opens now, so that what is wrong with it shows
    // at once. Otherwise each client says by the address it connects to which one to use.
    let known = !first.local.is_empty() || first.dev.is_some() || first.backend() == Backend::Xdp;
    // A session with the daemon is opened for each client: the daemon may be started anew meanwhile.
    let known = known && first.verbs.is_none();
    match service {
        Service::Own if known => ServerPorts::open(&all, |ports| {
            announce(&listener, &ports.names.join("; "), out)?;
            receive(args, ports, &listener)
        }),
        Service::Compat(_) if several => {
            bail!("--compat: the peer has one port: give one interface, queue or address")
        }
        Service::Compat(_) if known => {
            let server = Server {
                args,
                service: &service,
                listener: &listener,
                out,
            };
            device::open(first, None, server)
        }
        Service::Own | Service::Compat(_) => {
            let name = match &first.verbs {
                None => "UDP socket, opened for each client".to_owned(),
                // Opened once beforehand, so that what is wrong shows at once.
                Some(_) => {
                    let device = VerbsDevice::open(first, None)?;
                    format!("{}, opened for each client", device.port_name())
                }
            };
            announce(&listener, &name, out)?;
            loop {
                let stream = accept(&listener)?;
                let outcome = serve_address(first, &service, stream, out);
                if finish(args, outcome)? {
                    return Ok(());
                }
            }
        }
    }
}

/// Serves clients on the ports of the server, one after another.
fn receive(args: &ServerArgs, ports: &ServerPorts, listener: &TcpListener) -> Result<()> {
    let count = u32::try_from(ports.names.len()).unwrap_or(u32::MAX);
    loop {
        let stream = accept(listener)?;
        let mut channel = Channel::new(stream, clock::now())?;
        let peer = channel.peer();
        let outcome = match hear(&mut channel, count) {
            Ok(greeting) => gather(listener, count, (channel, greeting))
                .and_then(|conversations| ports.serve(conversations)),
            Err(e) => Err(e),
        };
        if finish(args, outcome.with_context(|| format!("client {peer}")))? {
            return Ok(());
        }
    }
}

/// The other conversations of a client, if it has several ports, all in the order of its ports.
fn gather(listener: &TcpListener, ports: u32, first: Introduced) -> Result<Vec<Introduced>> {
    let mut places: Vec<Option<Introduced>> = (0..first.1.lane.count).map(|_| None).collect();
    let result = fill(listener, ports, first, &mut places);
    let mut all = places.into_iter().flatten();
    if let Err(e) = result {
        for (mut channel, _) in all.by_ref() {
            channel.abort(&format!("{e:#}"), clock::now());
        }
        return Err(e);
    }
    Ok(all.collect())
}

/// Waits until each place has the conversation of its port.
fn fill(
    listener: &TcpListener,
    ports: u32,
    first: Introduced,
    places: &mut [Option<Introduced>],
) -> Result<()> {
    let lane = first.1.lane;
    let mut missing = lane.count;
    let mut next = Some(first);
    let deadline = clock::now() + HELLO;
    loop {
        if let Some((channel, greeting)) = next.take() {
            let number = greeting.lane.index;
            match places.get_mut(number as usize) {
                Some(place) if place.is_none() => *place = Some((channel, greeting)),
                _ => bail!("the client has two ports with the number {number}"),
            }
            missing -= 1;
        }
        if missing == 0 {
            return Ok(());
        }
        if clock::now() >= deadline {
            bail!(
                "{missing} of the client's {} ports did not come",
                lane.count
            );
        }
        next = another(listener, ports, lane)?;
    }
}

/// The next conversation if it is of the same client; another client is sent away.
fn another(listener: &TcpListener, ports: u32, lane: Lane) -> Result<Option<Introduced>> {
    let Some(stream) = knock(listener)? else {
        std::thread::sleep(NAP);
        return Ok(None);
    };
    let mut channel = Channel::new(stream, clock::now())?;
    let greeting = match hear(&mut channel, ports) {
        Ok(greeting) => greeting,
        Err(e) if e.is::<Interrupted>() => return Err(e),
        // Whatever that was, it is not the fault of the client that is being served.
        Err(e) => {
            complain(&e.context(format!("client {}", channel.peer())));
            return Ok(None);
        }
    };
    if (greeting.lane.group, greeting.lane.count) == (lane.group, lane.count) {
        return Ok(Some((channel, greeting)));
    }
    channel.abort(
        "the server is serving another client: try again",
        clock::now(),
    );
    Ok(None)
}

/// Serves one client on a port, or a session with the daemon, of its own.
fn serve_address(
    port: &PortArgs,
    service: &Service,
    stream: TcpStream,
    out: &mut dyn Write,
) -> Result<()> {
    let mut client = service.welcome(stream)?;
    let (local, peer) = (client.local(), client.peer());
    let one = OneClient {
        poll: port.poll,
        client: &mut client,
        out,
    };
    let result = device::open(port, Some(local), one);
    let result = result.with_context(|| format!("client {peer}"));
    if let Err(e) = &result {
        client.abort(&format!("{:#}", e.root_cause()));
    }
    result
}

struct OneClient<'a, 's> {
    poll: Poll,
    client: &'a mut ClientOf<'s>,
    out: &'a mut dyn Write,
}

impl User for OneClient<'_, '_> {
    fn run<D: Device>(self, mut device: D) -> Result<()> {
        self.client.serve(self.poll, &mut device, self.out)
    }
}

/// What the server speaks.
enum Service {
    /// Our own language: the client decides what is measured.
    Own,
    /// That of another program, which decides nothing.
    Compat(Job),
}

impl Service {
    fn new(args: &ServerArgs) -> Result<Self> {
        match (Job::new(&args.what)?, args.what.given()) {
            (Some(job), _) => Ok(Self::Compat(job)),
            (None, None) => Ok(Self::Own),
            (None, Some(option)) => {
                bail!("the client decides what is measured: {option} goes only with --compat")
            }
        }
    }

    fn welcome(&self, stream: TcpStream) -> Result<ClientOf<'_>> {
        Ok(match self {
            Self::Own => ClientOf::Own(Channel::new(stream, clock::now())?),
            Self::Compat(job) => ClientOf::Compat(job, Line::new(stream)?),
        })
    }
}

/// A client and the way to talk to it.
enum ClientOf<'s> {
    Own(Channel),
    Compat(&'s Job, Line),
}

impl ClientOf<'_> {
    fn local(&self) -> IpAddr {
        match self {
            Self::Own(channel) => channel.local(),
            Self::Compat(_, line) => line.local(),
        }
    }

    fn peer(&self) -> SocketAddr {
        match self {
            Self::Own(channel) => channel.peer(),
            Self::Compat(_, line) => line.peer(),
        }
    }

    /// Tells the client, if its language has words for it.
    fn abort(&mut self, reason: &str) {
        if let Self::Own(channel) = self {
            channel.abort(reason, clock::now());
        }
    }

    fn serve<D: Device>(&mut self, poll: Poll, device: &mut D, out: &mut dyn Write) -> Result<()> {
        match self {
            Self::Own(channel) => serve(poll, device, channel),
            Self::Compat(job, line) => compat::serve(job, poll, device, line, out),
        }
    }
}

/// A server whose port is open for good.
struct Server<'a> {
    args: &'a ServerArgs,
    service: &'a Service,
    listener: &'a TcpListener,
    out: &'a mut dyn Write,
}

impl User for Server<'_> {
    fn run<D: Device>(self, mut device: D) -> Result<()> {
        let name = format!("{} as {}", device.port_name(), device.local());
        announce(self.listener, &name, self.out)?;
        loop {
            let stream = accept(self.listener)?;
            let mut client = self.service.welcome(stream)?;
            let outcome = client
                .serve(self.args.port_args.poll, &mut device, self.out)
                .with_context(|| format!("client {}", client.peer()));
            if finish(self.args, outcome)? {
                return Ok(());
            }
        }
    }
}

/// Whether the server has finished; passes on what ends it.
fn finish(args: &ServerArgs, outcome: Result<()>) -> Result<bool> {
    match outcome {
        Err(e) if args.once || e.is::<Interrupted>() || stop::requested() => Err(e),
        Err(e) => {
            complain(&e);
            Ok(false)
        }
        Ok(()) => Ok(args.once),
    }
}

/// The misfortune of a client, in one line.
fn complain(error: &anyhow::Error) {
    // A server whose standard error is gone goes on serving.
    let _ = writeln!(
        std::io::stderr(),
        "xroce: {}",
        one_line(&format!("{error:#}"))
    );
}

fn listen(args: &ServerArgs) -> Result<TcpListener> {
    let port = args.port.unwrap_or_else(|| args.what.usual_port());
    let bound =
        match args.bind {
            Some(ip) => TcpListener::bind(SocketAddr::new(ip, port)),
            // A dual-stack socket where there is IPv6.
            None => TcpListener::bind(SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port)).or_else(
                |e| match e.kind() {
                    ErrorKind::AddrInUse => Err(e),
                    _ => TcpListener::bind(SocketAddr::new([0, 0, 0, 0].into(), port)),
                },
            ),
        };
    let listener = bound.map_err(|e| match e.kind() {
        ErrorKind::AddrInUse => {
            anyhow!("TCP port {port} is busy: another server may be running, end it or use --port")
        }
        ErrorKind::AddrNotAvailable => anyhow!(
            "{} is not an address of this machine: see \"ip address\", or leave --bind away",
            args.bind.unwrap_or(IpAddr::V6(Ipv6Addr::UNSPECIFIED))
        ),
        ErrorKind::PermissionDenied => {
            anyhow!(
                "listening on TCP port {} needs root: use --port above 1023",
                port
            )
        }
        _ => anyhow!("cannot listen on TCP port {}: {e}", port),
    })?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// One line, from which a program that started this one learns the port.
fn announce(listener: &TcpListener, name: &str, out: &mut dyn Write) -> Result<()> {
    writeln!(
        out,
        "listening on TCP port {}, {name}",
        listener.local_addr()?.port()
    )?;
    out.flush().context("cannot write to standard output")
}

/// The next client, whenever it comes. Needs: a listener that does not block.
///
/// # Errors
/// The user interrupts, or the listener is broken.
pub(crate) fn accept(listener: &TcpListener) -> Result<TcpStream> {
    loop {
        stop::check()?;
        match knock(listener)? {
            Some(stream) => return Ok(stream),
            None => std::thread::sleep(NAP),
        }
    }
}

/// A client, if one is there.
fn knock(listener: &TcpListener) -> Result<Option<TcpStream>> {
    match listener.accept() {
        Ok((stream, _)) => Ok(Some(stream)),
        Err(e) => match e.kind() {
            // A client that hung up while it waited in line is no concern of ours.
            ErrorKind::WouldBlock | ErrorKind::Interrupted | ErrorKind::ConnectionAborted => {
                Ok(None)
            }
            _ => bail!("cannot accept clients: {e}"),
        },
    }
}

/// One client from hello to bye.
///
/// # Errors
/// The conversation, the port or the queue pairs failed; the client was told.
pub(crate) fn serve<D: Device>(poll: Poll, device: &mut D, channel: &mut Channel) -> Result<()> {
    let greeting = hear(channel, 1)?;
    let result = converse_with(greeting, poll, device, channel);
    if let Err(e) = &result {
        channel.abort(&format!("{e:#}"), clock::now());
    }
    result
}

/// A client, or one of its ports, that has said what it wants.
pub(crate) type Introduced = (Channel, Greeting);

/// The first word of a client, checked.
pub(crate) struct Greeting {
    plan: Plan,
    gid: IpAddr,
    lane: Lane,
}

/// Hears what a client wants; this side has so many `ports`. The client is told if it cannot be.
fn hear(channel: &mut Channel, ports: u32) -> Result<Greeting> {
    let heard = listen_only(channel, HELLO).and_then(|message| {
        let Message::Hello {
            plan, gid, lane, ..
        } = message
        else {
            return Err(unexpected(&message, "hello"));
        };
        plan.check()?;
        lane.check(ports)?;
        Ok(Greeting { plan, gid, lane })
    });
    if let Err(e) = &heard {
        channel.abort(&format!("{e:#}"), clock::now());
    }
    heard
}

/// Does what a client wants, up to its bye.
///
/// # Errors
/// The conversation, the port or the queue pairs failed; the client is yet to be told.
pub(crate) fn converse_with<D: Device>(
    greeting: Greeting,
    poll: Poll,
    device: &mut D,
    channel: &mut Channel,
) -> Result<()> {
    let Greeting { plan, gid, .. } = greeting;
    let peer = agree(device, channel, gid)?;
    let (path_mtu, memory) = match listen_only(channel, SILENCE)? {
        Message::Connect { path_mtu, memory } => (check_path_mtu(path_mtu)?, memory),
        other => return Err(unexpected(&other, "connect")),
    };
    if PathMtu::for_link_mtu(device.link_mtu()).is_none_or(|largest| path_mtu > largest) {
        bail!(
            "path MTU {} does not fit this side's link",
            path_mtu.bytes()
        );
    }
    let path = device.path(peer)?;
    let mut flow = Flow::new(device, &plan, poll)?;
    let own = flow.memory();
    flow.set_remote(memory.check(own.len)?, path_mtu, path);
    let mut talk = Conversation::new(flow, channel);
    talk.say(&Message::Connected { memory: own })?;
    let pattern = Pattern::new(plan.sizes.iter().copied().max().unwrap_or(0));
    let mut gauge = Gauge::new();
    let steps: Vec<_> = plan.steps().collect();
    loop {
        match talk.listen()? {
            Message::Bye {} => return Ok(()),
            Message::Start {
                step: index,
                qps: theirs,
                round: first,
            } => {
                let step = *steps
                    .get(index as usize)
                    .ok_or_else(|| anyhow!("the plan has no step {index}"))?;
                // The queue pairs of the step before went on answering until now.
                talk.flow.end_step();
                let start = Start {
                    step,
                    index,
                    theirs,
                    first,
                };
                answer::step(&mut talk, &pattern, &plan, &mut gauge, &start)
                    .with_context(|| step.to_string())?;
            }
            other => return Err(unexpected(&other, "start")),
        }
    }
}

/// Says that this side will do it. Returns where the client is.
fn agree<D: Device>(device: &D, channel: &mut Channel, gid: IpAddr) -> Result<Gid> {
    let peer = check_gid(gid, device.local())?;
    let accept = Message::Accept {
        gid: device.local(),
        link_mtu: u32::try_from(device.link_mtu()).unwrap_or(u32::MAX),
        port: device.port_name().to_owned(),
    };
    channel.send(&accept, clock::now())?;
    Ok(peer)
}
