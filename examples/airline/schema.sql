-- The airline's database. Money is whole dollars, as the airline's own API counts it; times are the
-- airline's local times (EST) without an offset, so text order is time order. Segments of a reservation
-- keep the price they were sold at; what a seat costs today is in fares.

CREATE TABLE clock (now TEXT NOT NULL);  -- the domain's clock stands still

CREATE TABLE flights (
    flight_number TEXT PRIMARY KEY,
    origin        TEXT NOT NULL,
    destination   TEXT NOT NULL,
    departs       TEXT NOT NULL,  -- time of day; "+1" after it: on the next day
    arrives       TEXT NOT NULL
) WITHOUT ROWID;

CREATE TABLE flight_days (
    flight_number     TEXT NOT NULL REFERENCES flights,
    date              TEXT NOT NULL,
    status            TEXT NOT NULL
        CHECK (status IN ('available', 'on time', 'delayed', 'flying', 'landed', 'cancelled')),
    scheduled_arrival TEXT NOT NULL,
    arrival           TEXT,       -- actual, else estimated, else not known yet
    PRIMARY KEY (flight_number, date)
) WITHOUT ROWID;

CREATE TABLE fares (
    flight_number TEXT NOT NULL,
    date          TEXT NOT NULL,
    cabin         TEXT NOT NULL CHECK (cabin IN ('basic_economy', 'economy', 'business')),
    seats         INTEGER NOT NULL,
    price         INTEGER NOT NULL,
    PRIMARY KEY (flight_number, date, cabin)
) WITHOUT ROWID;

CREATE TABLE customers (
    user_id    TEXT PRIMARY KEY,
    first_name TEXT NOT NULL,
    last_name  TEXT NOT NULL,
    email      TEXT NOT NULL,
    dob        TEXT NOT NULL,
    membership TEXT NOT NULL CHECK (membership IN ('regular', 'silver', 'gold'))
) WITHOUT ROWID;

CREATE TABLE payment_methods (
    user_id    TEXT NOT NULL REFERENCES customers,
    payment_id TEXT NOT NULL,
    source     TEXT NOT NULL CHECK (source IN ('credit_card', 'gift_card', 'certificate')),
    amount     INTEGER,           -- what is left on a gift card or certificate
    issued_at  TEXT,              -- set on certificates that were sent as a gesture
    PRIMARY KEY (user_id, payment_id)
) WITHOUT ROWID;

CREATE TABLE reservations (
    reservation_id   TEXT PRIMARY KEY,
    user_id          TEXT NOT NULL REFERENCES customers,
    origin           TEXT NOT NULL,
    destination      TEXT NOT NULL,
    flight_type      TEXT NOT NULL CHECK (flight_type IN ('one_way', 'round_trip')),
    cabin            TEXT NOT NULL CHECK (cabin IN ('basic_economy', 'economy', 'business')),
    insurance        TEXT NOT NULL CHECK (insurance IN ('yes', 'no')),
    total_baggages   INTEGER NOT NULL,
    nonfree_baggages INTEGER NOT NULL,
    status           TEXT NOT NULL DEFAULT 'booked' CHECK (status IN ('booked', 'cancelled')),
    created_at       TEXT NOT NULL,
    changed_at       TEXT         -- when its flights or cabin were last changed, or it was cancelled
) WITHOUT ROWID;

CREATE TABLE segments (
    reservation_id TEXT NOT NULL REFERENCES reservations,
    leg            INTEGER NOT NULL,
    flight_number  TEXT NOT NULL,
    date           TEXT NOT NULL,
    origin         TEXT NOT NULL,
    destination    TEXT NOT NULL,
    price          INTEGER NOT NULL,
    PRIMARY KEY (reservation_id, leg)
) WITHOUT ROWID;

CREATE TABLE passengers (
    reservation_id TEXT NOT NULL REFERENCES reservations,
    position       INTEGER NOT NULL,
    first_name     TEXT NOT NULL,
    last_name      TEXT NOT NULL,
    dob            TEXT NOT NULL,
    PRIMARY KEY (reservation_id, position)
) WITHOUT ROWID;

CREATE TABLE payments (
    reservation_id TEXT NOT NULL REFERENCES reservations,
    position       INTEGER NOT NULL,
    payment_id     TEXT NOT NULL,
    amount         INTEGER NOT NULL,  -- negative: paid back
    PRIMARY KEY (reservation_id, position)
) WITHOUT ROWID;

CREATE INDEX reservations_of_customer ON reservations (user_id);
