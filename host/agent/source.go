package agent

import (
	"time"

	"github.com/sluice-proxy/sluice/host/config"
	"github.com/sluice-proxy/sluice/host/engine"
	"github.com/sluice-proxy/sluice/host/source/dir"
	"github.com/sluice-proxy/sluice/host/source/kube"
)

// clusterSource is where the cluster's state comes from.
type clusterSource struct {
	engine.Source
	name string
	kube *kube.Source // nil for a folder, which has all that it has
}

// openSource makes the source; problems, when not nil, is called with how many objects of the cluster are not as they
// should be.
func (a *Agent) openSource(problems func(errors, warnings int)) clusterSource {
	if a.opts.Client == nil {
		return clusterSource{name: a.opts.Manifests, Source: dir.New(a.opts.Manifests, dir.Options{Log: a.log, After: time.After, OnProblems: problems})}
	}
	cfg := a.opts.Config
	s := kube.New(kube.Options{
		Client: a.opts.Client, Node: cfg.HostnameOverride, RequirePodCIDRs: cfg.DetectLocalMode == config.NodeCIDR,
		Log: a.log, Now: time.Now, After: time.After, OnProblems: problems,
	})
	return clusterSource{Source: s, name: a.opts.Client.Server(), kube: s}
}
