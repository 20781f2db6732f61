-- In a file of its own, so that output never waits for the truth, nor the truth for output.
create table logs (
    run_id text    not null,
    first  integer not null,
    count  integer not null,
    body   text    not null,
    cursor text    not null,
    closed integer not null,
    bytes  integer not null,
    primary key (run_id, first)
) strict, without rowid;
