//! What a machine has to do with the world: another one, a tap, programs of the host.

use xroce_vm::{Cache, Extra, Net, Vm};

use crate::common::{SOON, ask, config, connect, fill, fnv, gid, image, kernel, statuses};

#[test]
fn two_machines() {
    let Some(image) = image() else {
        eprintln!("skipped: XROCE_VM is not set");
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let mut one = Vm::boot(&config(&image, dir.path(), 1)).unwrap();
    let mut two = Vm::boot(&config(&image, dir.path(), 2)).unwrap();
    for addr in ["10.0.0.2", "fd00::2", "10.5.0.2", "fd05::2"] {
        // 4172 bytes and the IPv4 and ICMP headers make 4200.
        let ping = format!(
            "ping -c 3 -s {} {addr}",
            if addr.contains(':') { 4152 } else { 4172 }
        );
        one.agent().exec(&ping, SOON).unwrap().ok().unwrap();
    }
    for (mine, theirs) in [
        ("::ffff:10.0.0.1", "::ffff:10.0.0.2"),
        ("fd00::1", "fd00::2"),
        ("::ffff:10.5.0.1", "::ffff:10.5.0.2"),
        ("fd05::1", "fd05::2"),
    ] {
        let ends = [(one.agent(), mine), (two.agent(), theirs)].map(|(agent, addr)| {
            ask(agent, "cq id=1 depth=64");
            let qpn = ask(agent, "qp id=1 scq=1 rcq=1").num32("qpn").unwrap();
            ask(agent, "mr id=1 len=65536 access=0xf");
            (gid(agent, addr), qpn)
        });
        let [((index1, gid1), qpn1), ((index2, gid2), qpn2)] = ends;
        connect(one.agent(), 1, "rc", (qpn2, &gid2), index1);
        connect(two.agent(), 1, "rc", (qpn1, &gid1), index2);
        ask(one.agent(), "fill mr=1 seed=7");
        ask(two.agent(), "recv qp=1 wr=1 sge=1:0:65536");
        ask(one.agent(), "send qp=1 wr=2 op=send sge=1:0:65536");
        assert_eq!(statuses(one.agent(), 1, 1), [0]);
        assert_eq!(statuses(two.agent(), 1, 1), [0]);
        let sent = fnv(&fill(65536, 7));
        assert_eq!(ask(two.agent(), "hash mr=1").num("fnv").unwrap(), sent);
        one.agent().reset().unwrap();
        two.agent().reset().unwrap();
    }
    two.agent()
        .spawn("server", "rping -s -a 10.0.0.2 -C 5")
        .unwrap();
    let client = "sleep 1; rping -c -a 10.0.0.2 -C 5 -v";
    one.agent().exec(client, SOON).unwrap().ok().unwrap();
    two.agent().wait("server", SOON).unwrap().ok().unwrap();
    two.agent()
        .spawn("server", "ib_send_bw -d rxe0 -x 1 -n 50 -s 4096")
        .unwrap();
    let client = "sleep 1; ib_send_bw -d rxe0 -x 1 -n 50 -s 4096 10.0.0.2";
    one.agent().exec(client, SOON).unwrap().ok().unwrap();
    two.agent().wait("server", SOON).unwrap().ok().unwrap();
}

/// A network namespace, gone at the end.
struct Namespace(String);

impl Namespace {
    fn new(name: &str) -> Self {
        run(&format!("ip netns add {name}"));
        Self(name.to_owned())
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let args = ["netns", "del", &self.0];
        let _ = std::process::Command::new("ip").args(args).status();
    }
}

fn run(line: &str) -> String {
    let output = std::process::Command::new("sh")
        .args(["-c", line])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{line}: {text}{error}");
    text
}

/// A tap in a namespace, and a program of the host in the image.
#[test]
fn a_tap_and_an_extra_program() {
    let (Some(_), true) = (image(), rustix::process::getuid().is_root()) else {
        eprintln!("skipped: XROCE_VM is not set, or not root");
        return;
    };
    let own = std::env::current_exe().unwrap();
    let extra = Extra {
        guest: "/opt/test/guest".to_owned(),
        host: own,
        mode: 0o755,
    };
    let missing = Extra {
        host: "/no/such".into(),
        ..extra.clone()
    };
    let cache = Cache::from_env().unwrap();
    let prepare = |extra| xroce_vm::prepare(&cache, kernel().unwrap(), &[extra], &mut |_| ());
    assert!(
        prepare(missing)
            .unwrap_err()
            .to_string()
            .contains("/no/such")
    );
    let image = prepare(extra).unwrap();

    let space = Namespace::new(&format!("xroce-vm-{}", std::process::id()));
    let name = &space.0;
    run(&format!("ip -n {name} tuntap add tap0 mode tap"));
    run(&format!("ip -n {name} link set tap0 mtu 4200 up"));
    run(&format!("ip -n {name} addr add 10.0.0.9/24 dev tap0"));
    let dir = tempfile::tempdir().unwrap();
    let mut config = config(&image, dir.path(), 1);
    config.netns = Some(name.clone());
    config.net = Net::Tap {
        ifname: "tap0".to_owned(),
    };
    let mut vm = Vm::boot(&config).unwrap();
    run(&format!(
        "ip netns exec {name} ping -c 3 -M do -s 4172 10.0.0.1"
    ));
    vm.agent()
        .exec("ping -c 3 -s 4172 10.0.0.9", SOON)
        .unwrap()
        .ok()
        .unwrap();
    let tests = vm
        .agent()
        .exec("/opt/test/guest --list", SOON)
        .unwrap()
        .ok()
        .unwrap();
    assert!(
        tests.contains("a_tap_and_an_extra_program: test"),
        "{tests}"
    );
    let is_there = || run("ps -eo args").contains(dir.path().to_str().unwrap());
    assert!(is_there());
    vm.kill();
    assert!(!is_there());
}
