WITH fence AS (
    INSERT INTO fences (election, token) VALUES ($1, $2)
    ON CONFLICT (election) DO UPDATE SET token = EXCLUDED.token
        WHERE fences.token <= EXCLUDED.token
    RETURNING token
)
INSERT INTO payments (invoice, token) SELECT $3::text, token FROM fence
