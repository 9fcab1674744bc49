package dir

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-proxy/sluice/host/api/gatewayapi"
	"github.com/sluice-proxy/sluice/host/api/v1alpha1"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/source"
	"github.com/sluice-proxy/sluice/host/util/strictyaml"
)

// key identifies an object in a directory.
type key struct {
	kind string
	name model.Name
}

// object is a decoded object and its problems.
type object struct {
	key
	change   model.Change // that sets its value; without a value if it is not proxied
	mirror   []*object    // Endpoints: EndpointSlices, used if the Service of that name has no selector
	selector bool         // Service: it has a selector
	mirrorOf string       // EndpointSlice: name of the Endpoints that a cluster mirrored into it
	problems problemList  // without file and line
}

func (k key) title() string { return objectTitle(k.kind, k.name) }

func objectTitle(kind string, name model.Name) string {
	if name.Name == "" {
		return kind + " without a name"
	}
	return kind + " " + strings.TrimPrefix(name.String(), "/")
}

// kinds are the decoders of the supported kinds, by apiVersion and kind.
var kinds = map[string]func(raw []byte, o *object){
	"v1 Service":                               decoder(convertService),
	"discovery.k8s.io/v1 EndpointSlice":        decoder(convertSlice),
	"v1 Endpoints":                             decoder(convertEndpoints),
	"v1 Node":                                  decoder(convertNode),
	"sluice.dev/v1alpha1 ServicePlugin":        decoder(convertObject[*v1alpha1.ServicePlugin]),
	"sluice.dev/v1alpha1 ServicePolicy":        decoder(convertObject[*v1alpha1.ServicePolicy]),
	"sluice.dev/v1alpha1 ClusterServicePolicy": decoder(convertObject[*v1alpha1.ClusterServicePolicy]),
	"gateway.networking.k8s.io/v1 TCPRoute":    decoder(convertRoute),
	"gateway.networking.k8s.io/v1 UDPRoute":    decoder(convertRoute),
	"networking.k8s.io/v1 ServiceCIDR": decoder(func(v *networkingv1.ServiceCIDR, o *object) (problems []source.Problem) {
		o.change.Kind = model.ServiceCIDRKind
		o.change.CIDR, problems = source.ServiceCIDR(v)
		return problems
	}),
	"sluice.dev/v1alpha1 EndpointLoad": decoder(func(v *v1alpha1.EndpointLoad, o *object) (problems []source.Problem) {
		o.change.Kind = model.LoadKind
		o.change.Load, problems = source.EndpointLoad(v, nil)
		return problems
	}),
	"v1 Namespace": decoder(func(v *corev1.Namespace, o *object) (problems []source.Problem) {
		o.change.Kind, o.change.Name = model.NamespaceKind, model.Name{Namespace: o.name.Name}
		o.change.Namespace, problems = source.Namespace(&v.ObjectMeta, slices.Sorted(maps.Keys(v.Labels)))
		return problems
	}),
	"v1 Pod": decoder(func(v *corev1.Pod, o *object) (problems []source.Problem) {
		o.change.Kind = model.PodKind
		o.change.Pod, problems = source.Pod(v, nil)
		return problems
	}),
}

// decoder returns a function that decodes an object as a T and converts it.
func decoder[T any, P interface {
	*T
	metav1.Object
}](convert func(v P, o *object) []source.Problem) func(raw []byte, o *object) {
	return func(raw []byte, o *object) {
		v, wrong := strictyaml.DecodeInstead[T](raw, insteadOf)
		P(v).SetNamespace(o.name.Namespace)
		P(v).SetName(o.name.Name)
		o.change.Name = o.name
		problems := convert(v, o)
		for _, p := range wrong.Reported {
			err := p.Err
			if p.Unknown {
				err = fmt.Errorf("%w: ignored", err)
			}
			o.problems.add(source.Problem{Object: o.title(), Field: p.Path, Err: err, Warning: p.Unknown})
		}
		o.problems.moreErrors += wrong.MoreDropped
		o.problems.moreWarnings += wrong.MoreUnknown
		for _, p := range problems {
			if !wrong.Covers(p.Field) {
				o.problems.add(p)
			}
		}
	}
}

var portField = regexp.MustCompile(`\bports\[\d+\]\.(name|protocol)$`)

// insteadOf returns the value that replaces one of the wrong type where none would mean something else: a port without its
// name or protocol matches others, every client is allowed without source ranges, and some labels count whatever their value.
func insteadOf(path string) any {
	const ranges, unusable = "spec.loadBalancerSourceRanges", "?"
	switch {
	case path == ranges:
		return []any{unusable}
	case strings.HasPrefix(path, ranges), portField.MatchString(path):
		return unusable
	case path == "metadata.labels["+source.LabelProxyName+"]", path == "metadata.labels["+source.LabelHeadless+"]":
		return ""
	}
	return nil
}

func convertService(v *corev1.Service, o *object) []source.Problem {
	s, skip, problems := source.Service(v)
	o.change.Kind, o.change.Service = model.ServiceKind, s
	o.selector = len(v.Spec.Selector) > 0
	if skip == source.SkipNoClusterIP {
		problems = append(problems, source.Problem{
			Object: o.title(), Field: "spec.clusterIP", Err: errors.New("not set; a directory has no allocator, so the Service is not proxied"),
		})
	}
	return problems
}

func convertSlice(v *discoveryv1.EndpointSlice, o *object) []source.Problem {
	for i := range v.Ports { // the API server's default
		if v.Ports[i].Name == nil {
			v.Ports[i].Name = new(string)
		}
	}
	if v.Labels[discoveryv1.LabelManagedBy] == source.MirrorController {
		o.mirrorOf = v.Labels[discoveryv1.LabelServiceName]
	}
	s, skip, problems := source.Slice(v)
	o.change.Kind, o.change.Slice = model.SliceKind, s
	if skip == source.SkipNoService {
		problems = append(problems, source.Problem{
			Object: o.title(), Field: "metadata.labels", Err: fmt.Errorf("no label %s: the slice belongs to no Service", discoveryv1.LabelServiceName),
		})
	}
	return problems
}

func convertNode(v *corev1.Node, o *object) []source.Problem {
	n, problems := source.Node(v)
	n.Ready = n.Ready || !slices.ContainsFunc(v.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == corev1.NodeReady })
	o.change.Kind, o.change.Node = model.NodeKind, n
	return problems
}

// convertObject keeps an object of sluice.dev as it is: the configuration converts it.
func convertObject[O metav1.Object](v O, o *object) []source.Problem {
	source.Narrow(v)
	o.change.Kind, o.change.Group, o.change.Object = model.ObjectKind, o.kind, v
	return nil
}

func convertRoute(v *gatewayapi.Route, o *object) (problems []source.Problem) {
	o.change.Kind, o.change.Group = model.RouteKind, o.kind
	o.change.Route, problems = source.Route(o.kind, v)
	return problems
}

//lint:ignore SA1019 older manifests contain Endpoints, and clusters mirror them
func convertEndpoints(v *corev1.Endpoints, o *object) []source.Problem {
	all, problems := source.Mirror(v)
	for _, s := range all {
		o.mirror = append(o.mirror, &object{
			key: key{"EndpointSlice", s.Name}, change: model.Change{Kind: model.SliceKind, Name: s.Name, Slice: s},
		})
	}
	return problems
}
