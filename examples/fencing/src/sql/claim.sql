INSERT INTO fences (election, token) VALUES ($1, $2)
ON CONFLICT (election) DO UPDATE SET token = EXCLUDED.token
    WHERE fences.token <= EXCLUDED.token
