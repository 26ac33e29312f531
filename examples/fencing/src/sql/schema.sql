CREATE TABLE IF NOT EXISTS fences (
    election text PRIMARY KEY,
    token    bigint NOT NULL
);
CREATE TABLE IF NOT EXISTS payments (
    id      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    invoice text NOT NULL UNIQUE,
    token   bigint NOT NULL
);
