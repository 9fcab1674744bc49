package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"github.com/sluice-proxy/sluice/host/lab/realcluster"
)

// results are the rows of all runs.
type results map[key]*row

type key struct {
	name  string
	proxy realcluster.Proxy
}

// earlier reads the results of earlier runs. Without a file there are none.
func earlier(file string) (results, error) {
	rows := results{}
	data, err := os.ReadFile(file)
	if file == "" || errors.Is(err, fs.ErrNotExist) {
		return rows, nil
	}
	var list []*row
	if err == nil {
		err = json.Unmarshal(data, &list)
	}
	if err != nil {
		return nil, fmt.Errorf("results of earlier runs, %s: %w", file, err)
	}
	for _, r := range list {
		rows[key{r.Name, r.Proxy}] = r
	}
	return rows, nil
}

func (r results) save(file string) error {
	if file == "" {
		return nil
	}
	var list []*row
	for _, x := range r {
		list = append(list, x)
	}
	slices.SortFunc(list, func(a, b *row) int { return a.Began.Compare(b.Began) })
	data, err := json.Marshal(list)
	if err != nil {
		return err
	}
	return os.WriteFile(file, data, 0o644)
}

// proxies are all, in the order of the tables.
var proxies = []realcluster.Proxy{realcluster.Sluice, realcluster.KubeProxy}

// figure returns the rows in the order of the scenarios and then of the proxies; nil if one is missing that the figure must have.
func (r results) figure(list []*scenario) (out []*row) {
	for _, s := range list {
		for _, p := range proxies {
			x := r[key{s.name, p}]
			if x == nil && s.group != "" && p == realcluster.Sluice {
				return nil
			}
			if x != nil {
				x.scenario = s
				out = append(out, x)
			}
		}
	}
	return out
}
