//! What a user does wrong, and what others do to `xroce`: one line that says what to do, an exit
//! status that is not zero, never a panic; and a server that goes on.

mod common;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use common::{Running, command, decode, udp_server, xroce};

#[test]
fn wrong_arguments() {
    for (args, words) in [
        (
            "nonsense",
            &["unrecognized subcommand", "nonsense", "xroce help"][..],
        ),
        ("perf nonsense", &["nonsense"]),
        ("perf client", &["SERVER"]),
        ("perf client h --op fly", &["fly", "send, write, read"]),
        ("perf client h --test speed", &["speed", "bw, lat"]),
        (
            "perf client h --size 0",
            &["--size", "between 1 byte and 64 MB"],
        ),
        ("perf client h --size many", &["many", "number of bytes"]),
        ("perf client h --sizes 2,,4", &["--sizes"]),
        (
            "perf client h --sizes 2 --size 2",
            &["--size", "cannot be used with"],
        ),
        (
            "perf client h --mtu 1500",
            &["1500", "256, 512, 1024, 2048, 4096"],
        ),
        ("perf client h --depth 0", &["--depth"]),
        ("perf client h --qps 100000", &["--qps"]),
        ("perf client h --qps 1,0", &["--qps"]),
        ("perf client h --depth 4,,8", &["--depth"]),
        ("perf client h --rate 0", &["--rate", "between 1 and 100M"]),
        ("perf client h --rate fast", &["--rate", "50k or 1.5M"]),
        (
            "perf client h --rate 1k --test bw",
            &["cannot be used with"],
        ),
        ("perf client h --arrivals poisson", &["--rate"]),
        (
            "perf client h --rate 1 --arrivals never",
            &["fixed, poisson"],
        ),
        ("perf client h --warmup 2m", &["--warmup", "200ms"]),
        ("perf client h --dev a --ring 32", &["--ring", "64..=16384"]),
        (
            "perf client h --format xml",
            &["table, csv, json, perftest"],
        ),
        (
            "perf client h --json --format csv",
            &["cannot be used with"],
        ),
        (
            "perf client h --dev a --queues 3-1",
            &["--queues", "backwards"],
        ),
        (
            "perf client h --queue 1 --queues 0-1",
            &["cannot be used with"],
        ),
        ("perf client h --messages -1", &["-1"]),
        ("perf client h --seconds 0", &["--seconds", "0.001"]),
        ("perf client h --seconds nan", &["--seconds"]),
        (
            "perf client h --seconds 1 --messages 1",
            &["cannot be used with"],
        ),
        ("perf client h --port 0", &["--port"]),
        ("perf client h --backend tcp", &["tcp", "xdp, udp"]),
        ("perf client h --poll never", &["busy, adaptive"]),
        ("perf server --port 65536", &["--port", "65536"]),
        ("perf server --bind here", &["--bind", "here"]),
        ("perf raw", &["ROLE"]),
        ("perf raw send", &["--dev"]),
        ("demo --backend tcp", &["xdp, udp"]),
        ("decode", &["FILE"]),
    ] {
        let done = xroce(args);
        done.fails(2, words);
    }
}

#[test]
fn plans_that_cannot_be_carried_out() {
    xroce("perf client 127.0.0.1 --qps 256 --size 64m").fails(1, &["MiB", "fewer --qps"]);
    let numbers = vec!["1"; 32].join(",");
    let sizes = vec!["2"; 64].join(",");
    for (args, words) in [
        ("--rate 1k --verify", &["--rate", "leave --verify away"][..]),
        ("--rate 1k --format perftest", &["no open loop", "--format"]),
        ("--rx-depth 5", &["--rx-depth", "--compat"]),
        (
            "--local 127.0.0.1,127.0.0.2 --rate 1",
            &["--rate must be between 1"],
        ),
        ("--queues 0-1", &["--queues", "--local"]),
        (
            "--local 127.0.0.1,127.0.0.2 --cores 0",
            &["1 cores for 2 ports"],
        ),
        (
            &format!("--op send,write,read --sizes {sizes} --qps {numbers} --depth {numbers}"),
            &["196608 measurements, more than 10000"],
        ),
        ("--compat perftest --rate 1k", &["--compat", "--rate"]),
        ("--compat perftest --warmup 1", &["--compat", "--warmup"]),
        (
            "--compat perftest --qps 1,2",
            &["--compat", "--qps is one number"],
        ),
        ("--compat perftest --format csv", &["--format csv"]),
        (
            "--compat perftest --local 127.0.0.1,127.0.0.2",
            &["--compat", "a second"],
        ),
    ] {
        xroce(&format!("perf client 127.0.0.1 {args}")).fails(1, words);
    }
    xroce("perf server --compat perftest --local 127.0.0.1,127.0.0.2 --port 0")
        .fails(1, &["--compat", "one port"]);
    let many = vec!["2"; 65].join(",");
    xroce(&format!("perf client 127.0.0.1 --sizes {many}")).fails(1, &["sizes", "64", "65"]);
}

#[test]
fn help_and_version_are_no_errors() {
    for args in [
        "--help",
        "--version",
        "perf --help",
        "perf client --help",
        "decode --help",
    ] {
        let done = xroce(args);
        assert_eq!((done.code, done.err.as_str()), (Some(0), ""), "{args}");
        assert!(!done.out.is_empty(), "{args}");
    }
    let done = xroce("");
    assert_eq!(done.code, Some(2));
    assert!(done.err.contains("Usage"), "{done:?}");
}

#[test]
fn missing_interface() {
    for args in [
        "perf server --dev nosuch0 --backend udp",
        "perf client 127.0.0.1 --dev nosuch0 --backend udp",
    ] {
        xroce(args).fails(1, &["nosuch0", "there are: ", "lo"]);
    }
    if cfg!(feature = "xdp") {
        xroce("perf server --dev nosuch0").fails(1, &["nosuch0", "there are: "]);
        xroce("perf raw receive --dev nosuch0").fails(1, &["nosuch0", "there are: "]);
        xroce("perf server --backend xdp").fails(1, &["--dev", "lo"]);
    } else {
        xroce("perf server --dev lo").fails(1, &["built without AF_XDP", "--backend udp"]);
    }
}

#[test]
fn a_core_or_an_address_that_is_not_there() {
    xroce("perf server --core 9999 --local 127.0.1.1").fails(1, &["9999", "--core"]);
    xroce("perf server --backend udp --local 192.0.2.1 --port 0").fails(1, &["192.0.2.1"]);
    xroce("perf server --bind 192.0.2.1 --port 0").fails(1, &["192.0.2.1", "ip address"]);
    xroce("perf server --backend udp --dev lo --local 192.0.2.1 --port 0")
        .fails(1, &["192.0.2.1", "lo"]);
}

#[test]
fn vlan_tags_are_written_by_whoever_writes_the_frame() {
    xroce("perf client h --vlan 4095").fails(2, &["--vlan", "4095"]);
    xroce("perf client 127.0.0.1 --backend udp --vlan 7").fails(1, &["--vlan", "eth0.7"]);
}

#[test]
fn busy_ports() {
    let taken = TcpListener::bind("127.0.2.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    xroce(&format!(
        "perf server --local 127.0.2.1 --bind 127.0.2.1 --port {port}"
    ))
    .fails(1, &["busy", &port.to_string(), "--port"]);

    let _roce = UdpSocket::bind("127.0.2.2:4791").unwrap();
    xroce("perf server --local 127.0.2.2 --bind 127.0.2.2 --port 0").fails(1, &["4791"]);
}

#[test]
fn a_server_that_is_not_there() {
    let port = {
        let listener = TcpListener::bind("127.0.3.1:0").unwrap();
        listener.local_addr().unwrap().port()
    };
    xroce(&format!("perf client 127.0.3.1 --port {port}"))
        .fails(1, &["no server at 127.0.3.1", "xroce perf server"]);
    xroce("perf client no-such-host.invalid").fails(1, &["no-such-host.invalid"]);
}

#[test]
fn a_peer_that_does_not_answer() {
    let silent = TcpListener::bind("127.0.3.2:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    let args = format!("perf client 127.0.3.2 --local 127.0.3.3 --port {port} --timeout 0.5");
    xroce(&args).fails(1, &["does not answer within 0.5 s", "another client"]);
}

/// What a fake server may answer, and what the client says to it.
#[test]
fn garbage_from_a_server() {
    let huge: &[u8] = b"XRPF\x00\x03\x00\x00\xff\xff\xff\xff";
    for (answer, words) in [
        (&b"SSH-2.0-OpenSSH_9.2p1\r\n"[..], "not xroce perf"),
        (huge, "4294967295"),
        (b"XRPF\x00\x09\x00\x00\x00\x00\x00\x00", "version 9"),
        (
            b"XRPF\x00\x03\x00\x00\x00\x00\x00\x02{}",
            "cannot be understood",
        ),
        (
            b"XRPF\x00\x03\x00\x00\x00\x00\x00\x0e{\"type\":\"bye\"}",
            "\"bye\" where \"accept\"",
        ),
        (b"XRPF\x00\x03", "middle of a message"),
        (b"", "closed the connection"),
    ] {
        let listener = TcpListener::bind("127.0.3.4:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let args = format!("perf client 127.0.3.4 --local 127.0.3.5 --port {port}");
        let client = Running::start(command(&args));
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(answer).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut said = Vec::new();
        let _ = stream.read_to_end(&mut said);
        client.finish().fails(1, &[words]);
    }
}

/// A server reports each hostile client in one line and serves the next.
#[test]
fn garbage_from_clients() {
    let (server, port) = udp_server("127.0.4.1", "");
    let hello_of = |gid: &str, size: &str, ports: u32| {
        let body = format!(
            "{{\"type\":\"hello\",\"gid\":\"{gid}\",\"link_mtu\":1500,\"port\":\"x\",\
             \"lane\":{{\"group\":0,\"index\":0,\"count\":{ports}}},\"plan\":{{\
             \"ops\":[\"send\"],\"tests\":[\"bw\"],\"sizes\":[{size}],\"qps\":[1],\"depths\":[1],\
             \"rates\":[],\"arrivals\":\"fixed\",\"seed\":0,\"warmup_millis\":0,\"bidirectional\":false,\
             \"bw_limit\":{{\"messages\":1}},\"lat_limit\":{{\"messages\":1}},\"verify\":true,\
             \"lat_max_size\":1,\"repair\":\"selective\"}}}}"
        );
        let len = u32::try_from(body.len()).unwrap().to_be_bytes();
        [b"XRPF\x00\x03\x00\x00", &len[..], body.as_bytes()].concat()
    };
    let hello = |gid: &str, size: &str| hello_of(gid, size, 1);
    let then_nonsense = [hello("127.0.4.9", "64"), b"nonsense".to_vec()].concat();
    for (sent, words) in [
        (b"GET / HTTP/1.1\r\n\r\n".to_vec(), "not xroce perf"),
        (
            b"XRPF\x00\x03\x00\x00\xff\xff\xff\xff".to_vec(),
            "4294967295",
        ),
        (
            b"XRPF\x00\x03\x00\x00\x00\x00\x00\x03{}}".to_vec(),
            "cannot be understood",
        ),
        (
            b"XRPF\x00\x03\x00\x00\x00\x01\x00\x00{".to_vec(),
            "middle of a message",
        ),
        (b"XRPF\x00\x00\x00\x00".to_vec(), "middle of a message"),
        (hello("255.255.255.255", "64"), "255.255.255.255"),
        (hello("::1", "64"), "::1"),
        (hello("127.0.4.9", "4000000000"), "4000000000"),
        (hello("127.0.4.9", "0"), "message size"),
        (hello_of("127.0.4.9", "64", 0), "port number: 0 of 0"),
        (hello_of("127.0.4.9", "64", 65), "port number: 0 of 65"),
        (hello_of("127.0.4.9", "64", 2), "2 ports, this server 1"),
        (then_nonsense, "not xroce perf"),
        (Vec::new(), "closed the connection"),
    ] {
        let mut stream = TcpStream::connect(("127.0.4.1", port)).unwrap();
        stream.write_all(&sent).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let line = server.err_line();
        assert!(line.starts_with("xroce: client 127.0.0.1:"), "{line}");
        assert!(line.contains(words), "{words}: {line}");
    }
    // One that connects and says nothing at all is given up.
    let half_open = TcpStream::connect(("127.0.4.1", port)).unwrap();
    let line = server.err_line();
    assert!(line.contains("said nothing for 3.0 s"), "{line}");
    drop(half_open);

    let args = format!(
        "perf client 127.0.4.1 --local 127.0.4.2 --port {port} --messages 100 --verify --json"
    );
    assert_eq!(xroce(&args).json()["results"][0]["mismatches"], 0);
}

/// A client with two ports of which one comes, and others meanwhile.
#[test]
fn a_client_whose_ports_do_not_all_come() {
    let addresses = "127.0.4.3,127.0.4.4";
    let (server, port) = common::server(command(&format!(
        "perf server --local {addresses} --bind 127.0.4.3 --port 0"
    )));
    let hello = |group: u32, index: u32| {
        let body = format!(
            "{{\"type\":\"hello\",\"gid\":\"127.0.4.9\",\"link_mtu\":1500,\"port\":\"x\",\
             \"lane\":{{\"group\":{group},\"index\":{index},\"count\":2}},\"plan\":{{\
             \"ops\":[\"send\"],\"tests\":[\"bw\"],\"sizes\":[64],\"qps\":[1],\"depths\":[1],\
             \"rates\":[],\"arrivals\":\"fixed\",\"seed\":0,\"warmup_millis\":0,\
             \"bidirectional\":false,\"bw_limit\":{{\"messages\":1}},\
             \"lat_limit\":{{\"messages\":1}},\"verify\":true,\"lat_max_size\":1,\
             \"repair\":\"adaptive\"}}}}"
        );
        let len = u32::try_from(body.len()).unwrap().to_be_bytes();
        let mut stream = TcpStream::connect(("127.0.4.3", port)).unwrap();
        stream
            .write_all(&[b"XRPF\x00\x03\x00\x00", &len[..], body.as_bytes()].concat())
            .unwrap();
        stream
    };
    let said = |mut stream: TcpStream| {
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let first = hello(1, 0);
    // Somebody else is sent away, garbage is passed over, and the rest is waited for.
    assert!(said(hello(2, 1)).contains("another client"));
    let mut garbage = TcpStream::connect(("127.0.4.3", port)).unwrap();
    garbage.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    assert!(server.err_line().contains("not xroce perf"));
    let line = server.err_line();
    assert!(
        line.contains("1 of the client's 2 ports did not come"),
        "{line}"
    );
    assert!(said(first).contains("did not come"));
    // The same port twice.
    let twice = [hello(3, 1), hello(3, 1)];
    let line = server.err_line();
    assert!(line.contains("two ports with the number 1"), "{line}");
    drop(twice);
    let args = "--local 127.0.4.5,127.0.4.6 --messages 10 --json";
    let report = xroce(&format!("perf client 127.0.4.3 --port {port} {args}")).json();
    assert_eq!(report["results"][0]["bandwidth"]["messages"], 20);
}

#[test]
fn decode_errors() {
    let dir = tempfile::tempdir().unwrap();
    decode(&dir.path().join("nosuch.pcap"), None).fails(1, &["nosuch.pcap"]);
    decode(dir.path(), None).fails(1, &[dir.path().to_str().unwrap()]);
    for (name, content) in [
        ("empty.pcap", &b""[..]),
        ("short.pcap", b"\xd4\xc3\xb2\xa1"),
        (
            "text.pcap",
            b"this is no capture at all, but long enough to look at\n",
        ),
    ] {
        let file = dir.path().join(name);
        std::fs::write(&file, content).unwrap();
        for flag in [None, Some("--json"), Some("--summary")] {
            let done = decode(&file, flag);
            assert_eq!(done.code, Some(1), "{done:#?}");
            assert_eq!(done.err.lines().count(), 1, "{done:#?}");
            assert!(done.err.contains(name), "{done:#?}");
        }
    }
}

#[test]
fn an_interrupted_server_ends_cleanly() {
    for signal in ["INT", "TERM"] {
        let (server, _) = udp_server("127.0.5.1", "");
        server.signal(signal);
        server.finish().fails(130, &["interrupted"]);
    }
}

/// A client that goes away in the middle is the server's loss of one test, nothing more.
#[test]
fn a_client_that_is_stopped_or_killed() {
    let (server, port) = udp_server("127.0.5.2", "");
    let args = format!("perf client 127.0.5.2 --local 127.0.5.3 --port {port} --seconds 60");
    for (signal, code, words) in [
        ("INT", Some(130), "interrupted"),
        ("KILL", None, "closed the connection"),
    ] {
        let client = Running::start(command(&args));
        std::thread::sleep(Duration::from_millis(700));
        client.signal(signal);
        assert_eq!(client.finish().code, code);
        let line = server.err_line();
        assert!(line.contains(words), "{line}");
    }
    let args =
        format!("perf client 127.0.5.2 --local 127.0.5.3 --port {port} --messages 10 --json");
    assert_eq!(
        xroce(&args).json()["results"][0]["bandwidth"]["messages"],
        10
    );
}

#[test]
fn a_server_that_is_killed() {
    let (server, port) = udp_server("127.0.5.4", "");
    let args = format!("perf client 127.0.5.4 --local 127.0.5.5 --port {port} --seconds 60");
    let client = Running::start(command(&args));
    std::thread::sleep(Duration::from_millis(700));
    server.signal("KILL");
    client.finish().fails(1, &["SEND bandwidth of 64 KB"]);
}
