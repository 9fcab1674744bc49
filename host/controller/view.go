package controller

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/rest"

	"github.com/sluice-proxy/sluice/host/api/gatewayapi"
	"github.com/sluice-proxy/sluice/host/api/v1alpha1"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/policy"
	"github.com/sluice-proxy/sluice/host/node/config"
	"github.com/sluice-proxy/sluice/host/source"
)

// view is the cluster at one time.
type view struct {
	nodes    []node
	plugins  map[string]*pluginView
	objects  map[model.ObjectName]any // plugins and policies
	problems map[model.ObjectName]*config.ObjectProblem
	policies map[model.ObjectName]*policy.Object // those that are valid
	set      *policy.Set
	services map[model.Name]*model.Service
	proxied  map[model.Name]*model.Service // those of services that have frontends
	routes   map[model.ObjectName]*routeView
	byParent map[model.Name][]*model.Route // the oldest first
	gateway  rest.Interface
	failing  map[model.ObjectName]map[int]*v1alpha1.PolicyReport // by index of the node

	least   map[string]string // by kind of policies: up to which version all nodes have read them
	omitted bool              // a node has more policies that are not in force than its report

	modulesPending bool // a module has not been read for the first time
}

// node is a Node with a report: sluice runs on it, and policies are objects.
type node struct {
	policy.Node
	report *v1alpha1.Report
}

// pluginView is a ServicePlugin.
type pluginView struct {
	object *v1alpha1.ServicePlugin
	module *module                  // nil: not read, or on nodes only
	on     []*v1alpha1.PluginReport // by node; nil: no policy uses it there
	used   bool
	loaded int // on how many nodes
}

func newView(c *caches, objects *config.Objects, cfg *config.Config, modules *modules) *view {
	v := &view{plugins: map[string]*pluginView{}, objects: map[model.ObjectName]any{}, problems: map[model.ObjectName]*config.ObjectProblem{},
		policies: map[model.ObjectName]*policy.Object{}, services: map[model.Name]*model.Service{}, proxied: map[model.Name]*model.Service{}, gateway: c.gateway, failing: map[model.ObjectName]map[int]*v1alpha1.PolicyReport{}}
	for _, o := range c.services.GetStore().List() {
		if s, ok := o.(*corev1.Service); ok {
			svc := &model.Service{Name: model.Name{Namespace: s.Namespace, Name: s.Name}, Labels: s.Labels}
			for _, p := range s.Spec.Ports {
				protocol, _ := model.ParseProtocol(cmp.Or(string(p.Protocol), "TCP"))
				svc.Ports = append(svc.Ports, model.ServicePort{Name: p.Name, Port: uint16(p.Port), Protocol: protocol})
			}
			v.services[svc.Name] = svc
			if source.SkipService(s) == "" {
				v.proxied[svc.Name] = svc
			}
		}
	}
	for _, i := range []struct {
		kind  string
		cache interface{ List() []any }
	}{{v1alpha1.ServicePluginKind, c.plugins.GetStore()}, {v1alpha1.ServicePolicyKind, c.policies.GetStore()}, {v1alpha1.ClusterServicePolicyKind, c.clusterPolicies.GetStore()}} {
		for _, o := range i.cache.List() {
			meta := o.(metav1.Object)
			v.objects[model.ObjectName{Kind: i.kind, Name: model.Name{Namespace: meta.GetNamespace(), Name: meta.GetName()}}] = o
		}
	}
	v.addNodes(c)
	v.addRoutes(c)
	v.addObjects(objects, cfg, modules)
	return v
}

// addNodes adds the Nodes that have a report, sorted by name.
func (v *view) addNodes(c *caches) {
	for _, o := range c.reports.GetStore().List() {
		report, ok := o.(*v1alpha1.NodeReport)
		if !ok {
			continue
		}
		of, exists, _ := c.nodes.GetStore().GetByKey(report.Name)
		if meta, ok := of.(*metav1.PartialObjectMetadata); exists && ok {
			v.nodes = append(v.nodes, node{policy.Node{Name: report.Name, Labels: meta.Labels, Known: true}, &report.Report})
		}
	}
	slices.SortFunc(v.nodes, func(a, b node) int { return cmp.Compare(a.Name, b.Name) })
	v.least = map[string]string{}
	for i := range v.nodes {
		r := v.nodes[i].report
		v.omitted = v.omitted || r.PoliciesOmitted > 0
		for _, kind := range []string{v1alpha1.ServicePolicyKind, v1alpha1.ClusterServicePolicyKind} {
			if observed := observedOf(r, kind); i == 0 || !hasRead(observed, v.least[kind]) {
				v.least[kind] = observed
			}
		}
		for j := range v.nodes[i].report.Policies {
			p := &v.nodes[i].report.Policies[j]
			name := policyName(p.Namespace, p.Name)
			if v.failing[name] == nil {
				v.failing[name] = map[int]*v1alpha1.PolicyReport{}
			}
			v.failing[name][i] = p
		}
	}
}

func policyName(namespace, name string) model.ObjectName {
	kind := v1alpha1.ServicePolicyKind
	if namespace == "" {
		kind = v1alpha1.ClusterServicePolicyKind
	}
	return model.ObjectName{Kind: kind, Name: model.Name{Namespace: namespace, Name: name}}
}

// addObjects converts plugins and policies, as nodes do.
func (v *view) addObjects(objects *config.Objects, cfg *config.Config, modules *modules) {
	converted, problems := objects.WithObjects(cfg, v.objects)
	v.set = converted.PolicySet()
	for _, p := range problems {
		v.problems[p.Object] = p
	}
	for _, o := range v.set.Objects() {
		v.policies[policyName(o.Name.Namespace, o.Name.Name)] = o
	}
	wanted := map[string]bool{}
	for _, o := range v.objects {
		p, ok := o.(*v1alpha1.ServicePlugin)
		if !ok {
			continue
		}
		of := &pluginView{object: p, on: make([]*v1alpha1.PluginReport, len(v.nodes))}
		module, pending := modules.get(p, wanted)
		of.module, v.modulesPending = module, v.modulesPending || pending
		v.plugins[p.Name] = of
	}
	modules.keep(wanted)
	for i := range v.nodes {
		for j := range v.nodes[i].report.Plugins {
			p := &v.nodes[i].report.Plugins[j]
			if of := v.plugins[p.Name]; of != nil {
				if of.on[i] = p; p.Digest != "" {
					of.loaded++
				}
			}
		}
	}
	for _, o := range v.policies {
		for i := range o.Policy.Steps {
			if of := v.plugins[o.Policy.Steps[i].Plugin]; of != nil {
				of.used = true
			}
		}
	}
}

// statuses returns the status of all objects, sorted by name.
func (v *view) statuses() (out []*write) {
	names := slices.SortedFunc(maps.Keys(v.objects), func(a, b model.ObjectName) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), a.Name.Compare(b.Name))
	})
	for _, name := range names {
		switch o := v.objects[name].(type) {
		case *v1alpha1.ServicePlugin:
			c := o.DeepCopy()
			v.pluginStatus(c)
			out = append(out, &write{name: name, resource: "serviceplugins", object: c, differs: !equal(&o.Status, &c.Status)})
		case *v1alpha1.ServicePolicy:
			c := o.DeepCopy()
			v.policyStatus(name, c, &c.Status, c.Spec.TargetRefs)
			out = append(out, &write{name: name, resource: "servicepolicies", object: c, differs: !equal(&o.Status, &c.Status)})
		case *v1alpha1.ClusterServicePolicy:
			c := o.DeepCopy()
			v.policyStatus(name, c, &c.Status, nil)
			out = append(out, &write{name: name, resource: "clusterservicepolicies", object: c, differs: !equal(&o.Status, &c.Status)})
		}
	}
	for _, name := range slices.SortedFunc(maps.Keys(v.routes), func(a, b model.ObjectName) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), a.Name.Compare(b.Name))
	}) {
		c, differs := v.routeStatus(name, v.routes[name])
		c.SetGroupVersionKind(gatewayapi.GroupVersion.WithKind(name.Kind))
		out = append(out, &write{name: name, resource: strings.ToLower(name.Kind) + "s", object: c, client: v.gateway, differs: differs})
	}
	return out
}

// specVersion returns a resource version from which on a node that has read the kind has the object's spec: the one at which the
// controller saw this generation first, which its status remembers.
func specVersion(o metav1.Object, observedGeneration int64, known string) string {
	if observedGeneration == o.GetGeneration() && known != "" {
		return known
	}
	return o.GetResourceVersion()
}

// hasRead reports whether a node that has read a kind up to a resource version has what was written at another one.
func hasRead(upTo, version string) bool {
	order, err := resourceversion.CompareResourceVersion(upTo, version)
	return err == nil && order >= 0
}
