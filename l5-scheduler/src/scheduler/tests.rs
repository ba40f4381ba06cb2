//! What an admission gives a request, with seats that were taken and returned before.

use super::Scheduler;
use crate::{Request, RequestId, SchedulerConfig, Seat, Time};

#[test]
fn an_admitted_request_and_its_row_have_the_lowest_free_seat() {
    let config = SchedulerConfig { max_num_seqs: 4, ..SchedulerConfig::new(17, 4) };
    let mut scheduler = Scheduler::new(config).unwrap();
    // Seats 0 and 2 are taken, and seat 1 was given before.
    let taken = [0, 1, 2].map(|_| scheduler.seats.take(99).unwrap());
    scheduler.seats.give_back(taken[1]);
    for id in [5, 6] {
        let (id, prompt) = (RequestId(id), vec![id as u32; 5]);
        let request = Request { id, prompt, max_tokens: 4, ..Request::default() };
        scheduler.add_request(request).unwrap();
    }
    let want = [(5, Seat { index: 1, generation: 1 }), (6, Seat { index: 3, generation: 0 })];
    let rows = &scheduler.plan(Time::ZERO).rows;
    assert_eq!(rows.iter().map(|row| (row.id.0, row.seat)).collect::<Vec<_>>(), want, "of rows");
    let running = scheduler.running().map(|request| (request.id().0, request.seat().unwrap()));
    assert_eq!(running.collect::<Vec<_>>(), want, "of requests");
}
