package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// simulationCase is a run of `sluice simulate` to measure.
type simulationCase struct {
	name                       string
	plugin                     string // on every Service; "": none
	nodes, services, endpoints int    // endpoints of each Service
	timeline                   string
}

var simulationCases = []simulationCase{
	{"no policy", "", 5000, 10000, 10, ""},
	{"`locality`", "locality", 5000, 10000, 10, ""},
	{"`subset`, which depends on the node", "subset", 500, 10000, 10, ""},
	{"`locality`, 10 minutes in which a zone is lost", "locality", 5000, 1000, 10, "at 10s\nzone zone-1 lost\nuntil 10m\n"},
}

// simulationCost is what a run costs.
type simulationCost struct {
	wall, cpu time.Duration
	maxRSS    int64 // bytes
	calls     int   // of plugins, of all nodes
}

// printSimulations measures `sluice simulate` in processes of its own, from a dump as kubectl writes it.
func (o *options) printSimulations(ctx context.Context, out *bytes.Buffer) error {
	fmt.Fprint(out, "\n**Simulation of a cluster**, `sluice simulate` from a file, one run\n\n"+
		"| policy of every Service | nodes | Services × endpoints | time, s | CPU, s | peak memory, MiB | plugin calls of all nodes |\n|---|---|---|---|---|---|---|\n")
	for _, c := range simulationCases {
		cost, err := c.measure(ctx, o.modules)
		if err != nil {
			return fmt.Errorf("simulation, %s: %w", c.name, err)
		}
		fmt.Fprintf(out, "| %s | %d | %d × %d | %.1f | %.1f | %d | %d |\n", c.name, c.nodes, c.services, c.endpoints, cost.wall.Seconds(), cost.cpu.Seconds(), cost.maxRSS>>20, cost.calls)
	}
	return nil
}

func (c *simulationCase) measure(ctx context.Context, m modules) (cost simulationCost, err error) {
	folder, err := os.MkdirTemp("", "bench-simulate")
	if err != nil {
		return cost, err
	}
	defer os.RemoveAll(folder)
	dump := filepath.Join(folder, "cluster.json")
	if err := c.writeCluster(dump); err != nil {
		return cost, err
	}
	args := []string{"simulate", "--source", dump, "-o", "json"}
	if c.plugin != "" {
		module, err := filepath.Abs(m.path(c.plugin))
		if err != nil {
			return cost, err
		}
		text := fmt.Sprintf("apiVersion: sluice.dev/v1alpha1\nkind: SluiceConfiguration\nplugins:\n- {name: p, file: %q}\npolicies:\n- name: all\n  plugins:\n  - name: p\ndefaultPolicy: all\n", module)
		if c.plugin == "subset" {
			text = text[:len(text)-len("defaultPolicy: all\n")] + "    settings: {endpoints: 3}\ndefaultPolicy: all\n"
		}
		file := filepath.Join(folder, "sluice.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			return cost, err
		}
		args = append(args, "--config", file)
	}
	if c.timeline != "" {
		file := filepath.Join(folder, "timeline")
		if err := os.WriteFile(file, []byte(c.timeline), 0o600); err != nil {
			return cost, err
		}
		args = append(args, "--timeline", file)
	}
	cmd := exec.CommandContext(ctx, filepath.Join(m.dir, "sluice"), args...)
	cmd.Stderr = os.Stderr
	start := time.Now()
	text, err := cmd.Output()
	if err != nil {
		return cost, err
	}
	usage := cmd.ProcessState.SysUsage().(*syscall.Rusage)
	cost.wall, cost.cpu, cost.maxRSS = time.Since(start), cmd.ProcessState.UserTime()+cmd.ProcessState.SystemTime(), usage.Maxrss<<10
	var result struct {
		Runs []struct {
			Summary struct{ PluginCalls int }
			Errors  []string
		}
	}
	if err := json.Unmarshal(text, &result); err != nil {
		return cost, err
	}
	if errs := result.Runs[0].Errors; len(errs) > 0 {
		return cost, fmt.Errorf("%s", errs[0])
	}
	cost.calls = result.Runs[0].Summary.PluginCalls
	return cost, nil
}

// writeCluster writes the cluster as `kubectl get nodes,services,endpointslices -A -o json` does.
func (c *simulationCase) writeCluster(file string) error {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	w := bufio.NewWriter(f)
	fmt.Fprint(w, `{"apiVersion":"v1","kind":"List","items":[`)
	for i := range c.nodes {
		if i > 0 {
			fmt.Fprint(w, ",\n")
		}
		fmt.Fprintf(w, `{"apiVersion":"v1","kind":"Node","metadata":{"name":"node-%d","labels":{"topology.kubernetes.io/zone":"zone-%d"}},`+
			`"status":{"allocatable":{"cpu":"16"},"conditions":[{"type":"Ready","status":"True"}],"addresses":[{"type":"InternalIP","address":"172.16.%d.%d"}]}}`, i, i%zones, i>>8, i&255)
	}
	for i := range c.services {
		fmt.Fprintf(w, ",\n"+`{"apiVersion":"v1","kind":"Service","metadata":{"name":"svc-%d","namespace":"bench"},"spec":{"type":"ClusterIP","clusterIP":"10.%d.%d.%d","clusterIPs":["10.%[2]d.%[3]d.%[4]d"],`+
			`"ports":[{"name":"http","port":80,"protocol":"TCP","targetPort":8080}],"selector":{"app":"svc-%[1]d"}}}`, i, 96+i>>16, i>>8&255, i&255)
		fmt.Fprintf(w, ",\n"+`{"apiVersion":"discovery.k8s.io/v1","kind":"EndpointSlice","metadata":{"name":"svc-%d-x","namespace":"bench","labels":{"kubernetes.io/service-name":"svc-%[1]d"}},`+
			`"addressType":"IPv4","ports":[{"name":"http","port":8080,"protocol":"TCP"}],"endpoints":[`, i)
		for j := range c.endpoints {
			if j > 0 {
				fmt.Fprint(w, ",")
			}
			id := i*c.endpoints + j
			node := (id * 7919) % c.nodes
			fmt.Fprintf(w, `{"addresses":["11.%d.%d.%d"],"conditions":{"ready":true,"serving":true,"terminating":false},"nodeName":"node-%d","zone":"zone-%d",`+
				`"targetRef":{"kind":"Pod","name":"svc-%d-6d4b75cb6d-%05x","namespace":"bench"}}`, id>>16, id>>8&255, id&255, node, node%zones, i, id)
		}
		fmt.Fprint(w, "]}")
	}
	fmt.Fprint(w, "]}\n")
	if err := w.Flush(); err != nil {
		return err
	}
	return f.Close()
}
