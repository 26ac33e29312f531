// The peer in Go: etcd's own clientv3/concurrency. It is asked by lines on stdin and answers on stdout, as the
// processes of lab/bench/src/peer.rs do.
package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/clientv3"
	"go.etcd.io/etcd/clientv3/concurrency"
)

var (
	endpoints []string
	ctx       = context.Background()
)

// What a bench does when it is asked; the words are those after the name of the question.
type questions map[string]func(words []string) ([]float64, error)

var benches = map[string]func() questions{}

func main() {
	bench := os.Args[1]
	endpoints = strings.Split(os.Args[2], ",")
	ask := benches[bench]
	if ask == nil {
		fmt.Println("error Go has no part in", bench)
		os.Exit(1)
	}
	answers := ask()
	fmt.Println("ok")
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		answer := answers[words[0]]
		if answer == nil {
			fmt.Println("error no question", words[0])
			continue
		}
		numbers, err := answer(words[1:])
		if err != nil {
			fmt.Println("error", strings.ReplaceAll(err.Error(), "\n", " "))
			continue
		}
		line := "ok"
		for _, number := range numbers {
			line += " " + strconv.FormatFloat(number, 'f', -1, 64)
		}
		fmt.Println(line)
	}
}

func number(word string) int {
	number, err := strconv.Atoi(word)
	if err != nil {
		panic(err)
	}
	return number
}

func connect() (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{Endpoints: endpoints, DialTimeout: 5 * time.Second})
}

func session(ttl int) (*concurrency.Session, error) {
	client, err := connect()
	if err != nil {
		return nil, err
	}
	return concurrency.NewSession(client, concurrency.WithTTL(ttl))
}
