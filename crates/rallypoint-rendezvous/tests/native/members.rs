//! Members that die, hang, or are replaced, each on a machine of its own.

use std::time::{Duration, Instant};

use super::world::{LEASE, PATIENT, SOON, Settings, World, change, ranks};

#[test]
fn a_leader_that_is_killed_while_a_round_forms_costs_no_last_call_and_no_rank() {
    // Far longer than anything else takes here.
    let options = "lease_timeout=2,last_call_timeout=40,read_timeout=1";
    let mut world = World::new(3, 4, Settings { min: 2, max: 4, options });
    world.group = (0..4).map(|host| world.start(host, &format!("node_id=n{host}"))).collect();
    let mut before = world.rounds();
    let names: Vec<_> = (0..4).map(|n| serde_json::Value::from(format!("n{n}"))).collect();
    for wait in [0, 3, 8, 20] {
        let leader = world.leader(&names);
        let other = (leader + 1) % 4;
        world.group[other].order("meet");
        std::thread::sleep(Duration::from_millis(wait));
        world.group[leader].kill();
        let began = Instant::now();
        // With the dead one, or without it: whichever came first.
        loop {
            let rounds: Vec<_> =
                (0..4).filter(|n| *n != leader).map(|n| world.group[n].next_within("round", SOON)).collect();
            for (round, was) in rounds.iter().zip((0..4).filter(|n| *n != leader).map(|n| &before[n])) {
                let kept = round["rank"] == was["rank"] || was["rank"] == 3;
                assert!(kept, "killed after {wait} ms: {rounds:?} after {before:?}");
            }
            if rounds[0]["world_size"] == 3 {
                break;
            }
        }
        assert!(began.elapsed() < Duration::from_secs(20), "the last call was sat out");
        world.group[leader] = world.start(leader, &format!("node_id=n{leader}"));
        before = world.soon();
    }
}

#[test]
fn a_member_whose_name_another_process_takes_is_told_who_that_is() {
    let mut world = World::new(3, 5, Settings { min: 2, max: 3, options: PATIENT });
    world.group = (0..3).map(|host| world.start(host, &format!("node_id=n{host}"))).collect();
    let before = world.rounds();
    let names: Vec<_> = (0..3).map(|n| serde_json::Value::from(format!("n{n}"))).collect();
    let leader = world.leader(&names);
    for (which, host) in [(leader, 3), ((leader + 1) % 3, 4)] {
        let new = world.start(host, &format!("node_id=n{which}"));
        let old = std::mem::replace(&mut world.group[which], new);
        let by = format!("Replaced {{ by: \"{}\" }}", world.host(host).address());
        assert_eq!(change(&old.next_within("change", SOON)), by);
        let error = old.next_within("error", SOON);
        assert!(error["error"].as_str().unwrap().contains(&world.host(host).address()), "{error}");
        // It may have been in a round with the others before they heard of it.
        let after = world.soon();
        assert_eq!(ranks(&before), ranks(&after));
    }
    world.is_calm_for(LEASE);
}

#[test]
fn a_member_that_hangs_is_left_behind_after_the_last_call_and_gets_in_when_it_goes_on() {
    let options = "lease_timeout=2,last_call_timeout=2,read_timeout=1";
    let mut world = World::new(3, 4, Settings { min: 2, max: 4, options });
    let before = world.meet(4);
    let mut hung = world.group.pop().unwrap();
    hung.order("hang");
    world.group[0].order("meet");
    let after = world.soon();
    assert_eq!(after[0]["world_size"], 3);
    let kept = before.iter().zip(&after).filter(|(was, is)| was["rank"] == is["rank"]).count();
    assert!(kept >= 2, "{before:?}, {after:?}");
    hung.order("go");
    world.group.push(hung);
    assert_eq!(world.soon()[0]["world_size"], 4);
}
