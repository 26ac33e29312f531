package main

import (
	"fmt"
	"sync"
	"time"

	"go.etcd.io/etcd/clientv3"
	"go.etcd.io/etcd/clientv3/concurrency"
)

func init() {
	benches["many"] = func() questions {
		of, err := session(ttl)
		if err != nil {
			panic(err)
		}
		lead := func(prefix string, n int) error {
			var wait sync.WaitGroup
			failed := make(chan error, n)
			for i := 0; i < n; i++ {
				wait.Add(1)
				go func(i int) {
					defer wait.Done()
					election := concurrency.NewElection(of, fmt.Sprintf("%s/%d", prefix, i))
					if err := election.Campaign(ctx, "bench"); err != nil {
						failed <- err
					}
				}(i)
			}
			wait.Wait()
			select {
			case err := <-failed:
				return err
			default:
				return nil
			}
		}
		return questions{
			"lead": func(words []string) ([]float64, error) {
				start := time.Now()
				if err := lead(words[0], number(words[1])); err != nil {
					return nil, err
				}
				took := time.Since(start)
				_, err := of.Client().Delete(ctx, words[0]+"/", clientv3.WithPrefix())
				return []float64{nanos(took)}, err
			},
		}
	}
	benches["observers"] = func() questions {
		observer, err := connect()
		if err != nil {
			panic(err)
		}
		seen := make(chan int64, 10000)
		count := 0
		all := func(leader int64) error {
			for left := count; left > 0; {
				select {
				case revision := <-seen:
					if revision == leader {
						left--
					}
				case <-time.After(30 * time.Second):
					return fmt.Errorf("%d have not seen it", left)
				}
			}
			return nil
		}
		var leads, next *standing
		q := &queue{ttl: ttl, contest: func(session *concurrency.Session, name string) contest {
			return election{concurrency.NewElection(session, name)}
		}}
		return questions{
			"observe": func(words []string) ([]float64, error) {
				q.name, count = words[0], number(words[1])
				for i := 0; i < 2; i++ {
					s, err := q.connect()
					if err != nil {
						return nil, err
					}
					if err := q.join(s); err != nil {
						return nil, err
					}
				}
				leads, next = q.standing[0], q.standing[1]
				if err := <-leads.won; err != nil {
					return nil, err
				}
				// An observer needs no lease: any session of the client will do.
				session, err := concurrency.NewSession(observer, concurrency.WithTTL(ttl))
				if err != nil {
					return nil, err
				}
				for i := 0; i < count; i++ {
					changes := concurrency.NewElection(session, q.name).Observe(ctx)
					go func() {
						for change := range changes {
							seen <- change.Kvs[0].CreateRevision
						}
					}()
				}
				return nil, all(leads.contest.(election).Rev())
			},
			"change": func([]string) ([]float64, error) {
				for len(seen) > 0 {
					<-seen
				}
				start := time.Now()
				if err := leads.contest.giveUp(); err != nil {
					return nil, err
				}
				if err := <-next.won; err != nil {
					return nil, err
				}
				if err := all(next.contest.(election).Rev()); err != nil {
					return nil, err
				}
				took := time.Since(start)
				leads, next = next, leads
				return []float64{nanos(took)}, q.join(next)
			},
		}
	}
}
