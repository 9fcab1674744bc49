package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/host/lab/realcluster"
)

// configuration has the policies that Services choose by annotation.
const configuration = `plugins:
- {name: lifecycle, file: /plugins/lifecycle.wasm}
- {name: outlier, file: /plugins/outlier.wasm}
- {name: canary, file: /plugins/canary.wasm}
policies:
- name: staged
  plugins: [{name: lifecycle, settings: {drain: {stages: [{percent: 50, duration: 8s}, {percent: 10, duration: 8s}]}}}]
- name: warm-up
  plugins: [{name: lifecycle, settings: {warm: {duration: 20s}}}]
- name: eject
  plugins: [{name: outlier, settings: {maxEjectionPercent: 50}}]
- name: one-percent
  plugins: [{name: canary, settings: {groups: [{value: canary, percent: 1}]}}]
allow:
- policies: [staged, warm-up, eject, one-percent]
`

// policies are what operators use policies for, on real Pods.
func policies() []*scenario {
	const restartGroup, scaleGroup, zoneGroup, hangGroup, canaryGroup = "rolling restart", "scale-up", "a zone is lost", "a Pod hangs", "canary"
	choose := func(policy string) string { return "sluice.dev/policy: " + policy }
	restart := restarts(nothing)
	sluice := realcluster.Sluice
	return []*scenario{
		{name: "rolling restart, server goes on for 10 s", web: web{drain: 10 * time.Second}, act: restart, after: 12 * time.Second},
		{name: "rolling restart, server goes on for 25 s", group: restartGroup, web: web{drain: 25 * time.Second}, act: restart, after: 27 * time.Second},
		{name: "rolling restart, server goes on for 25 s, lifecycle", group: restartGroup, only: sluice, web: web{drain: 25 * time.Second, annotations: choose("staged")}, act: restart,
			after: 27 * time.Second},
		{name: "rolling restart, server ends at SIGTERM", group: restartGroup, act: restart},
		{name: "rolling restart, server ends at SIGTERM, refused connections retried", group: restartGroup, only: sluice, web: web{annotations: "sluice.dev/refused-connections: retry"}, act: restart},
		{name: "rolling restart, server ends at SIGTERM, preStop sleep of 1 s", web: web{preStop: 1}, act: restart},
		{name: "scale-up from 2 to 4 Pods", group: scaleGroup, web: web{replicas: 2}, act: scaleUp, after: 30 * time.Second, tell: shareOfNew},
		{name: "scale-up from 2 to 4 Pods, lifecycle", group: scaleGroup, only: sluice, web: web{replicas: 2, annotations: choose("warm-up")}, act: scaleUp, after: 30 * time.Second, tell: shareOfNew},
		{name: "a zone is lost", group: zoneGroup, avoid: "n3", web: web{}, act: loseZone},
		{name: "a zone is lost, outlier", group: zoneGroup, avoid: "n3", only: sluice, web: web{annotations: choose("eject")}, act: loseZone},
		{name: "a Pod hangs", group: hangGroup, web: web{slowProbe: true}, act: hang, after: 40 * time.Second},
		{name: "a Pod hangs, outlier", group: hangGroup, only: sluice, web: web{slowProbe: true, annotations: choose("eject")}, act: hang, after: 40 * time.Second},
		{name: "a canary Pod beside 6", group: canaryGroup, web: web{}, act: canary, after: 40 * time.Second, tell: shareOfCanary},
		{name: "a canary Pod beside 6, canary 1 %", group: canaryGroup, only: sluice, web: web{annotations: choose("one-percent")}, act: canary, after: 40 * time.Second, tell: shareOfCanary},
	}
}

func scaleUp(ctx context.Context, b *bed) (string, error) {
	if _, err := b.kubectl(ctx, "scale", "deployment/stable", "--replicas=4"); err != nil {
		return "", err
	}
	return "", b.Rollout(ctx, namespace, "deployment/stable")
}

// shareOfNew tells what servers that were not there at first got, in the first five seconds and in the last ten.
func shareOfNew(r *row) string {
	old := r.old()
	first := 0
	for i, s := range r.Result.Seconds {
		if first == 0 && len(s.Servers) > len(old) {
			first = i
		}
	}
	n := len(r.Result.Seconds)
	return fmt.Sprintf("new Pods' share: %.0f %% in their first 5 s, %.0f %% at the end", 100*r.share(first, first+5, old), 100*r.share(n-11, n-1, old))
}

// old returns the servers that answered before the action.
func (r *row) old() map[string]bool {
	old := map[string]bool{}
	for _, s := range r.Result.Seconds[:min(int(r.Acted.Seconds()), len(r.Result.Seconds))] {
		for name := range s.Servers {
			old[name] = true
		}
	}
	return old
}

// share returns the share of other servers in some seconds.
func (r *row) share(from, to int, except map[string]bool) float64 {
	others, all := 0, 0
	for _, s := range r.Result.Seconds[max(0, from):min(to, len(r.Result.Seconds))] {
		for name, n := range s.Servers {
			if all += n; !except[name] {
				others += n
			}
		}
	}
	return float64(others) / float64(max(1, all))
}

// loseZone powers the only worker of a zone off for 90 s. Kubernetes takes its Pods out of the Service after some 50 s.
func loseZone(ctx context.Context, b *bed) (string, error) {
	n := b.Node("n3")
	if err := n.Stop(); err != nil {
		return "", err
	}
	wait(ctx, 90*time.Second)
	_, err := b.Kubectl(ctx, "", "delete", "pod", "-n", namespace, "--field-selector=spec.nodeName=n3", "--force", "--grace-period=0")
	if err = errors.Join(err, n.Start(context.WithoutCancel(ctx))); err != nil {
		return "", err
	}
	_, err = b.Kubectl(ctx, "", "wait", "node", "n3", "--for=condition=Ready", "--timeout=300s")
	return "", err
}

// hang drops all packets to a Pod, as a Pod that does not get the CPU would. It is unready after three probes.
func hang(ctx context.Context, b *bed) (string, error) {
	ip, err := b.kubectl(ctx, "get", "pod", "-l", "app=web", "--field-selector=spec.nodeName=n2", "-o", "jsonpath={.items[0].status.podIP}")
	if err != nil {
		return "", err
	}
	const script = `for f in /run/netns/*; do nsenter --net=$f ip -o addr | grep -q " $1/" && nsenter --net=$f nft 'add table inet hang { chain in { type filter hook input priority 0; policy drop; }; }'; done; :`
	_, err = b.Node("n2").Exec(ctx, "sh", "-c", script, "sh", ip)
	return "", err
}

// canary adds a Pod of another version.
func canary(ctx context.Context, b *bed) (string, error) {
	text, _, _ := strings.Cut(web{replicas: 1}.manifest("canary", 1), "---")
	if _, err := b.Kubectl(ctx, text, "-n", namespace, "apply", "-f", "-"); err != nil {
		return "", err
	}
	return "", b.Rollout(ctx, namespace, "deployment/canary")
}

func shareOfCanary(r *row) string {
	n := len(r.Result.Seconds)
	stable := map[string]bool{}
	for name := range r.Result.Servers {
		stable[name] = strings.HasPrefix(name, "stable-")
		if !stable[name] {
			delete(stable, name)
		}
	}
	return fmt.Sprintf("canary's share: %.1f %%", 100*r.share(n-36, n-1, stable))
}
