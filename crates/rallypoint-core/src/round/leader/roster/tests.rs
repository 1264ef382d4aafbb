//! What becomes of members and of who takes their names.

use super::super::super::context::tests::Bench;
use super::super::super::record::{Lost, NAMED_LOSSES, RECORD_VERSION, RoundRecord, Seat, json};
use super::super::super::settings::RankPolicy;
use super::super::reading::last_round;
use super::member::{ANSWER, SLOW};
use super::*;

const SETTINGS: RunSettings = RunSettings { min_nodes: 1, max_nodes: 4, policy: RankPolicy::Sticky };

/// What the process of that number says under the name `n`.
fn said(incarnation: u64, wants: Wants, modified: i64) -> Entry {
    let record = NodeRecord {
        version: RECORD_VERSION,
        incarnation,
        address: "n.example".to_owned(),
        port: 1,
        wants,
        round: 0,
        seat: None,
        settings: SETTINGS,
        host: String::new(),
        rack: String::new(),
        hint: String::new(),
        about: String::new(),
        since: 0,
    };
    let (key, value) = ("node/n".to_owned(), json(&record));
    Entry { key, value, create_revision: modified, mod_revision: modified, lease: 1 }
}

/// A roster in whose last round the first process by the name `n` is a member.
fn roster(member: Member) -> Roster {
    let mut roster = Roster::new(SETTINGS);
    roster.read("n", &said(1, Wants::Join, 2));
    if member.has_left() {
        roster.spend("n", 1, 5, 1);
    }
    let members = HashMap::from([("n".to_owned(), member)]);
    let plan = "plan".to_owned();
    roster.begin(LastRound { round: 1, plan, world_size: 1, members, ..LastRound::default() });
    roster
}

/// Looks for them as often as it takes, and they are not there.
fn look_in_vain(roster: &mut Roster, ids: &[String], now: Duration) {
    for _ in 0..2 {
        roster.look_for(ids, now);
        ids.iter().for_each(|id| roster.looked_for(id, now, now, None));
    }
}

#[test]
fn a_member_is_dead_once_it_was_asked_and_has_not_answered() {
    let mut roster = roster(Member::new(0, 1));
    let (asked, ids) = (Duration::from_secs(1), ["n".to_owned()]);
    let none: [String; 0] = [];
    roster.remove("n", 3);
    assert_eq!((roster.unasked().len(), roster.silent(asked * 2)), (1, none.to_vec()));
    roster.ask(&ids, Asked::Asking);
    assert!(roster.unasked().is_empty());
    roster.read("n", &said(1, Wants::Stay, 9));
    roster.were_asked(&ids, Asked::Asking, Asked::at(asked));
    roster.remove("n", 10);
    assert_eq!((roster.unasked().len(), roster.silent(asked * 2)), (1, none.to_vec()), "it had answered");
    roster.ask(&ids, Asked::at(asked));
    assert_eq!(roster.answer_due(), Some(asked + ANSWER));
    assert_eq!(roster.silent(asked), none);
    assert_eq!(roster.silent(asked + ANSWER), ids);
    roster.looked_for("n", asked, asked * 2, None);
    assert_eq!(roster.losses.count(), 0, "nobody has looked for it");
    roster.look_for(&ids, asked * 2);
    roster.looked_for("n", asked, asked * 2, Some(&said(1, Wants::Stay, 9)));
    assert_eq!(roster.class("n"), Class::Missing, "it was there at an earlier look, and is gone since");
    roster.looked_for("n", asked * 2, asked * 2, None);
    assert_eq!(
        (roster.class("n"), roster.answer_due()),
        (Class::Missing, Some(asked * 2 + ANSWER)),
        "once more"
    );
    roster.look_for(&ids, asked * 3);
    roster.look_failed(&ids, asked * 3, asked * 4);
    assert_eq!(roster.answer_due(), Some(asked * 4 + ANSWER), "nobody has seen whether it is there");
    roster.look_for(&ids, asked * 5);
    roster.looked_for("n", asked * 5, asked * 5, None);
    assert_eq!((roster.class("n"), roster.losses.count()), (Class::None, 1));
}

/// etcd is away while the leader looks for a member, and the member could not answer. It may be slow for ever, too.
#[test]
fn looks_that_take_long_are_repeated_a_few_times() {
    let ids = ["n".to_owned()];
    let dead_after = |looks: &[Duration]| {
        let mut roster = roster(Member::new(0, 1));
        roster.remove("n", 3);
        roster.ask(&ids, Asked::at(Duration::ZERO));
        looks.iter().position(|took| {
            let look = roster.answer_due().unwrap();
            roster.look_for(&ids, look);
            roster.looked_for("n", look, look + *took, None);
            roster.losses.count() == 1
        })
    };
    let (quick, slow) = (SLOW, SLOW * 2);
    assert_eq!(dead_after(&[quick, quick]), Some(1));
    assert_eq!(dead_after(&[slow, quick, quick]), Some(2));
    assert_eq!(dead_after(&[quick, slow, slow, slow]), Some(3));
    assert_eq!(dead_after(&[slow, slow, slow, slow]), Some(3));
}

/// One request looks for both, and only one of them was looked for before.
#[test]
fn a_look_is_repeated_for_each_by_itself() {
    let members = [("n", 0), ("m", 1)].map(|(id, rank)| (id.to_owned(), Member::new(rank, 1)));
    let (mut roster, members) = (Roster::new(SETTINGS), HashMap::from(members));
    let plan = "plan".to_owned();
    roster.begin(LastRound { round: 1, plan, world_size: 2, members, ..LastRound::default() });
    let (look, ids) = (Duration::from_secs(1), ["n".to_owned(), "m".to_owned()]);
    roster.look_for(&ids[..1], Duration::ZERO);
    roster.looked_for("n", Duration::ZERO, Duration::ZERO, None);
    roster.look_for(&ids, look);
    for id in &ids {
        roster.looked_for(id, look, look, None);
    }
    assert_eq!((roster.class("n"), roster.class("m")), (Class::None, Class::Missing));
}

/// Only some of those who are lost are named in the news. Whoever leads next finds the others again.
#[test]
fn a_loss_that_was_told_without_a_name_is_counted_once() {
    let (members, here) = (NAMED_LOSSES + 4, Duration::from_secs(1));
    let ids: Vec<String> = (0..members).map(|rank| format!("m{rank}")).collect();
    let mut told = News::default();
    for _ in 0..2 {
        let mut roster = Roster::new(SETTINGS);
        let named = ids.iter().enumerate().map(|(rank, id)| (id.clone(), Member::new(rank, 1))).collect();
        let plan = "plan".to_owned();
        roster.begin(LastRound {
            round: 1,
            plan,
            world_size: members,
            members: named,
            told,
            ..LastRound::default()
        });
        look_in_vain(&mut roster, &ids, here);
        told = roster.news();
        assert_eq!((told.lost.len(), told.lost_count), (NAMED_LOSSES, members));
    }
}

/// etcd was restored to a round before the last one, and who died since seems to be at work.
#[test]
fn ranks_are_those_of_the_last_round_that_a_node_was_in() {
    let mut roster = Roster::new(SETTINGS);
    let members = [("n", 1), ("dead", 0)].map(|(id, rank)| (id.to_owned(), Member::new(rank, 1)));
    let seated = |rank: usize, modified: i64| {
        let mut entry = said(1, Wants::Join, modified);
        let mut record: NodeRecord = parse(&entry).unwrap();
        let plan = "later".to_owned();
        (record.round, record.seat) = (3, Some(Seat { round: 3, plan, rank, world_size: 2 }));
        entry.value = json(&record);
        entry
    };
    roster.read("n", &seated(0, 9));
    roster.read("new", &seated(1, 10));
    let (members, plan) = (HashMap::from(members), "plan".to_owned());
    roster.begin(LastRound { round: 1, plan, world_size: 3, members, ..LastRound::default() });
    assert_eq!(roster.seats(), ["n", "new"]);
}

#[test]
fn what_the_watch_tells_late_is_known_already() {
    let mut roster = roster(Member::new(0, 1));
    roster.read("n", &said(1, Wants::Stay, 9));
    roster.remove("n", 8);
    roster.read("n", &said(1, Wants::Join, 7));
    assert_eq!(roster.class("n"), Class::Running);
}

#[test]
fn who_follows_a_dead_member_is_a_newcomer_unless_the_member_had_come_back() {
    let mut roster = roster(Member::new(0, 1));
    roster.remove("n", 3);
    look_in_vain(&mut roster, &["n".to_owned()], Duration::ZERO);
    let mut returned = said(2, Wants::Join, 9);
    roster.read("n", &returned);
    assert_eq!(roster.class("n"), Class::Newcomer);
    roster.remove("n", 9);
    roster.read("n", &said(1, Wants::Stay, 10));
    assert_eq!(roster.class("n"), Class::Running);
    returned.mod_revision = 11;
    roster.read("n", &returned);
    assert_eq!(roster.class("n"), Class::Survivor);
}

#[test]
fn what_a_member_wanted_before_it_left_counts_no_more() {
    let mut roster = roster(Member::that_left(0, 1));
    // The nodes were read before it left, and the places after.
    assert_eq!((roster.class("n"), roster.news().waiting), (Class::None, 0));
    roster.read("n", &said(1, Wants::Leave, 5));
    assert_eq!(roster.class("n"), Class::None);
    roster.read("n", &said(1, Wants::Join, 7));
    assert_eq!(roster.class("n"), Class::None, "a request from before the round came late");
    roster.read("n", &said(2, Wants::Join, 8));
    assert_eq!(roster.class("n"), Class::Newcomer);
}

/// Seed 3001354122: three processes fight for a name. One of them has a seat in the first round, another in the second, and then
/// comes late what the first wanted before: its port is that of the first round's master.
#[test]
fn what_a_process_wanted_before_its_round_counts_no_more_after_another_of_its_name_had_a_seat() {
    let mut roster = roster(Member::new(0, 1));
    roster.read("n", &said(2, Wants::Join, 4));
    let members = HashMap::from([("n".to_owned(), Member::new(0, 2))]);
    let plan = "second".to_owned();
    roster.begin(LastRound { round: 2, plan, world_size: 1, members, ..LastRound::default() });
    roster.read("n", &said(1, Wants::Join, 7));
    roster.look_at_all();
    assert_eq!((roster.class("n"), roster.news().lost_count), (Class::None, 1));
    let mut again = said(1, Wants::Join, 8);
    again.value = again.value.replace(r#""round":0"#, r#""round":1"#);
    roster.read("n", &again);
    assert_eq!(roster.class("n"), Class::Survivor, "it knows of its round by now");
}

/// The same, and whoever leads by then has not seen the first round: the place tells of it.
#[test]
fn whoever_leads_next_knows_what_counts_no_more() {
    let (mut bench, mut roster) = (Bench::new(), Roster::new(SETTINGS));
    roster.read("n", &said(1, Wants::Join, 7));
    let record = RoundRecord {
        plan: "second".to_owned(),
        world_size: 1,
        ..RoundRecord::without_round(2, Some(SETTINGS), 1)
    };
    let place = r#"{ "round": 2, "plan": "second", "rank": 0, "incarnation": 2,
        "previous": { "round": 1, "plan": "first", "rank": 0, "incarnation": 1 } }"#;
    let (key, value) = (bench.context().keys.rank("n"), place.to_owned());
    let place = Entry { key, value, create_revision: 3, mod_revision: 5, lease: 1 };
    let last = last_round(&bench.context(), &mut roster, &record, &[place]);
    roster.begin(last);
    roster.look_at_all();
    assert_eq!((roster.class("n"), roster.news().lost_count), (Class::None, 1));
}

/// A roster with members by these names, ranked so, all of which are there.
fn group(names: &[String]) -> Roster {
    let mut roster = Roster::new(SETTINGS);
    for name in names {
        roster.read(name, &said(1, Wants::Join, 2));
    }
    let members = names.iter().enumerate().map(|(rank, name)| (name.clone(), Member::new(rank, 1))).collect();
    let (plan, world_size) = ("plan".to_owned(), names.len());
    roster.begin(LastRound { round: 1, plan, world_size, members, ..LastRound::default() });
    roster
}

fn dies(roster: &mut Roster, id: &str, revision: i64) {
    let (now, ids) = (Duration::from_secs(1), [id.to_owned()]);
    roster.remove(id, revision);
    roster.ask(&ids, Asked::at(now));
    look_in_vain(roster, &ids, now + ANSWER);
}

#[test]
fn a_death_is_told_before_all_else_however_many_have_left_before() {
    let names: Vec<String> = (0..NAMED_LOSSES + 3).map(|number| format!("n{number:02}")).collect();
    let mut roster = group(&names);
    for (number, name) in names.iter().take(NAMED_LOSSES).enumerate() {
        roster.read(name, &said(1, Wants::Leave, 3 + number as i64));
    }
    assert!(roster.news().lost.iter().all(|lost| lost.why == Why::Left));
    for dead in &names[NAMED_LOSSES..NAMED_LOSSES + 2] {
        dies(&mut roster, dead, 50);
    }
    let news = roster.news();
    let told: Vec<_> = news.lost.iter().map(|lost| (lost.node.as_str(), lost.why)).collect();
    assert_eq!(told[..3], [("n08", Why::Died), ("n09", Why::Died), ("n00", Why::Left)], "{told:?}");
    assert_eq!((told.len(), news.lost_count), (NAMED_LOSSES, NAMED_LOSSES + 2));
}

#[test]
fn who_does_not_come_to_the_next_round_is_named_though_nobody_was_told() {
    let names = ["a", "b", "c"].map(str::to_owned);
    let mut roster = group(&names);
    let again = |round, modified| {
        let mut entry = said(1, Wants::Join, modified);
        let mut record: NodeRecord = parse(&entry).unwrap();
        record.round = round;
        entry.value = json(&record);
        entry
    };
    for (name, modified) in [("a", 10), ("b", 11)] {
        roster.read(name, &again(1, modified));
    }
    assert_eq!(roster.news().lost[0].why, Why::Again);
    // It dies while it waits for the round that it asked for; another one hangs.
    roster.remove("a", 12);
    let absent: Vec<_> = roster.absent().into_iter().map(|lost| (lost.node, lost.why)).collect();
    assert_eq!(absent, [("a".to_owned(), Why::Died), ("c".to_owned(), Why::Late)]);
    assert!(roster.gone().is_empty());
}

/// Seeds 3201262204 and 3204097505: etcd had no space for the line that tells of the death.
#[test]
fn who_is_back_before_anybody_was_told_of_its_death_has_not_died() {
    let dead = || {
        let mut roster = roster(Member::new(0, 1));
        roster.remove("n", 3);
        roster.ask(&["n".to_owned()], Asked::at(Duration::ZERO));
        look_in_vain(&mut roster, &["n".to_owned()], Duration::from_secs(1));
        assert_eq!(roster.news().lost_count, 1);
        roster
    };
    let is_whole = |roster: &Roster| (roster.is_whole(), roster.news().lost_count) == (true, 0);

    let mut untold = dead();
    untold.read("n", &said(1, Wants::Stay, 4));
    assert!(is_whole(&untold) && untold.class("n") == Class::Running);
    untold.remove("n", 5);
    assert_eq!(untold.unasked().len(), 1, "it may die another time");

    let telling = |modified: i64| {
        let mut roster = dead();
        roster.losses_were_told(1, &News::default());
        roster.losses_are_being_told();
        roster.read("n", &said(1, Wants::Stay, modified));
        assert!(!is_whole(&roster), "the request may be carried out");
        roster
    };
    let tells = dead().news();
    let mut refused = telling(4);
    refused.losses_were_told(1, &News::default());
    assert!(is_whole(&refused));
    refused.losses_were_told(2, &tells);
    assert!(!is_whole(&refused), "it had no answer, and was carried out");

    let mut told = telling(4);
    told.losses_were_told(2, &tells);
    told.losses_were_told(3, &tells);
    assert!(!is_whole(&told));
    assert_eq!(told.news().lost_count, 1);

    let mut another = dead();
    another.read("n", &said(2, Wants::Join, 4));
    assert!(!is_whole(&another));

    for (news, why) in [(News::default(), Why::Left), (tells, Why::Died)] {
        let mut leaves = dead();
        leaves.losses_are_being_told();
        leaves.read("n", &said(1, Wants::Leave, 4));
        leaves.losses_were_told(2, &news);
        let whys: Vec<Why> = leaves.news().lost.iter().map(|lost| lost.why).collect();
        assert_eq!(whys, [why]);
    }

    // Seed 3801338094: it leaves, and may come again, before the request is answered.
    for again in [Some(1), Some(2), None] {
        let mut leaves = telling(4);
        leaves.read("n", &said(1, Wants::Leave, 5));
        leaves.remove("n", 6);
        if let Some(process) = again {
            let mut comes = said(process, Wants::Join, 7);
            comes.value = comes.value.replace(r#""round":0"#, r#""round":1"#);
            leaves.read("n", &comes);
        }
        leaves.losses_were_told(1, &News::default());
        let news = leaves.news();
        let whys: Vec<Why> = news.lost.iter().map(|lost| lost.why).collect();
        let waiting = usize::from(again.is_some());
        assert_eq!((whys, news.lost_count, news.waiting), (vec![Why::Left], 1, waiting), "{again:?}");
    }

    let mut another_leaves = dead();
    another_leaves.losses_are_being_told();
    another_leaves.read("n", &said(2, Wants::Leave, 4));
    another_leaves.remove("n", 5);
    another_leaves.losses_were_told(1, &News::default());
    assert_eq!(another_leaves.news().lost[0].why, Why::Died, "that was another process");
}

/// Seed 3503310830: an earlier leader has told of more losses than it named, and who was one of the others dies, and is back.
#[test]
fn who_was_lost_without_a_name_and_is_back_before_its_death_was_told_has_not_died() {
    let lost_count = NAMED_LOSSES + 1;
    let lost = |rank| Lost { node: format!("m{rank}"), rank, why: Why::Again };
    let told = News { lost: (1..=NAMED_LOSSES).map(lost).collect(), lost_count, ..News::default() };
    let mut roster = Roster::new(SETTINGS);
    let mut members: HashMap<_, _> =
        told.lost.iter().map(|lost| (lost.node.clone(), Member::new(lost.rank, 1))).collect();
    members.insert("n".to_owned(), Member::new(0, 1));
    let (plan, world_size) = ("plan".to_owned(), members.len());
    roster.begin(LastRound { round: 1, plan, world_size, members, told, ..LastRound::default() });
    let news = |roster: &Roster| {
        let News { lost, lost_count, .. } = roster.news();
        (lost.iter().filter(|lost| lost.why == Why::Died).count(), lost_count)
    };
    for modified in [4, 6] {
        dies(&mut roster, "n", modified - 1);
        assert_eq!(news(&roster), (1, lost_count));
        roster.read("n", &said(1, Wants::Stay, modified));
        assert_eq!(news(&roster), (0, lost_count));
    }
    roster.read("n", &said(1, Wants::Leave, 8));
    assert_eq!(roster.news().lost_count, lost_count, "it is counted once");
}

/// All others who are lost were behind the dead, and there was no room to name them.
#[test]
fn who_is_lost_is_named_when_the_dead_before_it_are_back() {
    let ids: Vec<String> = (0..=NAMED_LOSSES).map(|rank| format!("n{rank}")).collect();
    let mut roster = Roster::new(SETTINGS);
    let members = ids.iter().enumerate().map(|(rank, id)| (id.clone(), Member::new(rank, 1))).collect();
    let (plan, world_size) = ("plan".to_owned(), ids.len());
    for id in &ids {
        roster.read(id, &said(1, Wants::Stay, 2));
    }
    roster.begin(LastRound { round: 1, plan, world_size, members, ..LastRound::default() });
    let (leaves, dead) = ids.split_first().unwrap();
    roster.read(leaves, &said(1, Wants::Leave, 3));
    for id in dead {
        roster.remove(id, 3);
        roster.lose(id, Why::Died);
    }
    assert!(roster.news().lost.iter().all(|lost| lost.why == Why::Died));
    for id in dead {
        roster.read(id, &said(1, Wants::Stay, 4));
    }
    let news = roster.news();
    let named: Vec<_> = news.lost.iter().map(|lost| (&lost.node, lost.why)).collect();
    assert_eq!((named, news.lost_count), (vec![(leaves, Why::Left)], 1));
}

/// Their places are lost, and some of them come back after they were counted as lost.
#[test]
fn who_was_counted_as_lost_before_its_name_was_known_is_counted_once() {
    let members = HashMap::from([("n".to_owned(), Member::new(0, 1))]);
    let mut roster = Roster::new(SETTINGS);
    roster.read("n", &said(1, Wants::Stay, 2));
    let plan = "plan".to_owned();
    roster.begin(LastRound { round: 1, plan, world_size: 3, members, ..LastRound::default() });
    roster.lose_unnamed();
    assert_eq!((roster.news().lost_count, roster.outstanding()), (2, 1));
    for (id, rank, wants) in [("asks", 1, Wants::Join), ("stays", 2, Wants::Stay)] {
        let mut entry = said(1, wants, 3);
        let mut record: NodeRecord = parse(&entry).unwrap();
        record.round = 1;
        record.seat = Some(Seat { round: 1, plan: "plan".to_owned(), rank, world_size: 3 });
        entry.value = json(&record);
        roster.read(id, &entry);
        assert_eq!(roster.news().lost_count, 2, "{id}");
    }
    assert_eq!((roster.survivors(), roster.outstanding()), (1, 2));
    roster.read("n", &said(1, Wants::Leave, 4));
    assert_eq!(roster.news().lost_count, 3);
}
