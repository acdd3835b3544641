//! Requests that make no sense.

use xroce_vm::{Agent, Refused, Vm};

use crate::common::{SOON, ask, config, image, refused};

/// They are answered with err, and change nothing.
pub(crate) fn nonsense(agent: &mut Agent) {
    ask(agent, "cq id=1 depth=16");
    ask(agent, "mr id=1 len=4096 access=0xf");
    ask(agent, "qp id=1 type=rc scq=1 rcq=1");
    for line in [
        "fly",
        "cq",
        "cq id=1",
        "cq id=1024",
        "cq id=-1",
        "cq id=2 depth=0",
        "cq id=2 depth=99999999",
        "mr id=2",
        "mr id=2 len=0xffffffffffffffff",
        "mr id=2 len=1000000000",
        "mr id=2 len=4096 access=2",
        "qp id=2 type=xx scq=1 rcq=1",
        "qp id=2 scq=9 rcq=1",
        "qp id=2 scq=1 rcq=1 srq=3",
        "qp id=2 scq=1 rcq=1 swr=4000000000",
        "modify qp=1 state=rtr",
        "modify qp=1 state=rtr dgid=00",
        "modify qp=1 state=flying",
        "modify qp=1 state=rts timeout=32",
        "query qp=2",
        "send qp=1 op=send sge=1:0:64",
        "send qp=1 op=fly",
        "send qp=1 op=send sge=1:0",
        "send qp=1 op=send sge=1",
        "send qp=1 op=send sge=",
        "send qp=1 op=send sge=1:0:4097",
        "send qp=1 op=send sge=1:0xfffffffffffffff0:32",
        "send qp=1 op=send sge=2:0:1",
        "send qp=1 op=send n=0",
        "send qp=1 op=send n=5000",
        "send qp=1 op=send sge=1:0:64 n=65 stride=64",
        "send qp=9",
        "recv qp=1 sge=1:0:64",
        "recv srq=1",
        "poll cq=1 min=513",
        "poll cq=7",
        "fill mr=1 len=5000",
        "fill mr=1 off=0xffffffffffffffff len=2",
        "hash mr=1 off=4097",
        "peek mr=1 off=1 len=4096",
        "poke mr=1 hex=abc",
        "poke mr=1 hex=zz",
        "poke mr=1 off=4095 hex=0000",
        "ah id=1 dgid=zz",
        "mw id=1 type=3",
        "bind qp=1 mw=1",
        "mcast qp=1 gid=00",
        "destroy kind=pd id=1",
        "destroy kind=qp id=2",
        "destroy kind=cq id=1",
        "dereg id=5",
        "kill name=nobody",
        "kill",
        "wait name=",
        "get",
        "exec",
        "put path=/tmp",
        "gids novalue",
    ] {
        // `exec` without a script runs nothing, which is no error.
        if line == "exec" {
            ask(agent, line);
        } else {
            refused(agent, line);
        }
    }
    let many = "k=v ".repeat(300);
    assert!(refused(agent, &format!("gids {many}")).contains("more than"));
    assert!(refused(agent, "mr id=2 len=x").contains("len=x is no number"));
    assert!(refused(agent, "modify qp=1 state=rtr").contains("errno=22"));
    assert_eq!(ask(agent, "query qp=1").text("state").unwrap(), "reset");
    agent.reset().unwrap();
    assert!(refused(agent, "query qp=1").contains("there is no qp 1"));
}

/// Random words in the place of verbs, keys and values: the agent answers each request, and is
/// there afterwards.
#[test]
fn random_requests() {
    let Some(image) = image() else {
        eprintln!("skipped: XROCE_VM is not set");
        return;
    };
    let verbs = "reset mr dereg cq qp srq ah mw destroy mcast events fill hash peek poke modify \
        query send recv bind poll kill wait get gids counters x";
    let keys = "id qp cq mr ah srq mw scq rcq wr n sge op rva rkey lkey raw off len access depth \
        type state dgid gid gid_index mtu dqpn rq_psn sq_psn timeout retry rnr rnr_timer rd_in \
        rd_out kind inv imm cmp swap flags stride rstride hex seed max min qkey swr rwr name sig";
    let values = "0 1 2 3 4 0x10 64 4096 65536 0x7fffffff 0xffffffff 0xffffffffffffffff -1 rc ud \
        uc init rtr rts err reset send write read cas fadd send_inv write_imm local_inv qp cq mr \
        1:0:64 1:0:64,2:0:8 2:4000:4096 - : 1: 1::: 00000000000000000000ffff0a000001 00ff x";
    let [verbs, keys, values] =
        [verbs, keys, values].map(|s| s.split_whitespace().collect::<Vec<_>>());
    let seed = std::env::var("XROCE_SEED").map_or(1, |seed| seed.parse::<u64>().unwrap());
    eprintln!("XROCE_SEED={seed}");
    let mut state = seed;
    let mut pick = |words: &[&'static str]| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        words[usize::try_from(state >> 33).unwrap() % words.len()]
    };
    let dir = tempfile::tempdir().unwrap();
    let mut vm = Vm::boot(&config(&image, dir.path(), 1)).unwrap();
    let mut done = 0;
    for _ in 0..5000 {
        let verb = pick(&verbs);
        let mut args = String::new();
        for _ in 0..pick(&["0", "2", "4", "6", "9"]).parse::<u32>().unwrap() {
            // Half of the ids are 1, so that objects meet.
            let value = if pick(&["a", "b"]) == "a" {
                "1"
            } else {
                pick(&values)
            };
            args.push_str(&format!("{}={value} ", pick(&keys)));
        }
        match vm.agent().call(verb, args.trim_end(), None, SOON) {
            Ok(_) => done += 1,
            Err(error) if error.is::<Refused>() => {}
            Err(error) => panic!("{error:#}\n{}", vm.console()),
        }
    }
    eprintln!("{done} of 5000 were done");
    vm.agent().reset().unwrap();
    assert!(!vm.console().contains("BUG"), "{}", vm.console());
}
