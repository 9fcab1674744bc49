package agent

import (
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/engine"
	"github.com/sluice-proxy/sluice/host/node/config"
	"github.com/sluice-proxy/sluice/host/source/dir"
	"github.com/sluice-proxy/sluice/host/source/kube"
)

// clusterSource is a source of cluster state.
type clusterSource struct {
	engine.Source
	name string       // URL of the API server, or the directory of manifests
	kube *kube.Source // nil for a directory
}

// RememberNode implements engine.NodeRememberer.
func (s clusterSource) RememberNode(n *model.Node) {
	if s.kube != nil {
		s.kube.RememberNode(n)
	}
}

// openSource returns the source of the options. onProblems, if not nil, is called with the numbers of problems found in
// the objects of the cluster.
func (a *Agent) openSource(onProblems func(errors, warnings int)) clusterSource {
	if a.opts.Client == nil {
		return clusterSource{name: a.opts.Manifests, Source: dir.New(a.opts.Manifests, dir.Options{Log: a.log, After: time.After, Now: time.Now, OnProblems: onProblems})}
	}
	cfg := a.config()
	s := kube.New(kube.Options{
		WaitForPods: a.opts.Once,
		Client:      a.opts.Client, Node: cfg.HostnameOverride, RequirePodCIDRs: cfg.DetectLocalMode == config.NodeCIDR,
		Log: a.log, Now: time.Now, After: time.After, OnProblems: onProblems,
	})
	return clusterSource{Source: s, name: a.opts.Client.Server(), kube: s}
}
