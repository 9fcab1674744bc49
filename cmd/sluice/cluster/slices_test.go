package cluster

import (
	"context"
	"fmt"

	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// endpoint returns the endpoint of a Pod.
func (s *scene) endpoint(service, pod string) (*discoveryv1.Endpoint, error) {
	list, err := s.Client.DiscoveryV1().EndpointSlices(s.ns).List(s.ctx, metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + service})
	if err != nil {
		return nil, err
	}
	for _, slice := range list.Items {
		for _, e := range slice.Endpoints {
			if e.TargetRef != nil && e.TargetRef.Name == pod {
				return &e, nil
			}
		}
	}
	return nil, fmt.Errorf("Service %s/%s: %s is not among its endpoints", s.ns, service, pod)
}

func (s *scene) inSlice(service, pod string) error {
	_, err := s.endpoint(service, pod)
	return err
}

func (s *scene) terminatingInSlice(service, pod string) error {
	e, err := s.endpoint(service, pod)
	if err == nil && (e.Conditions.Terminating == nil || !*e.Conditions.Terminating) {
		err = fmt.Errorf("Service %s/%s: %s does not terminate", s.ns, service, pod)
	}
	return err
}

// hinted reports whether an endpoint has a hint for a zone.
func (s *scene) hinted(service, pod, zone string) error {
	e, err := s.endpoint(service, pod)
	if err != nil {
		return err
	}
	if e.Hints == nil || len(e.Hints.ForZones) != 1 || e.Hints.ForZones[0].Name != zone {
		return fmt.Errorf("Service %s/%s: %s: hints %+v, want zone %s", s.ns, service, pod, e.Hints, zone)
	}
	return nil
}

func (l *lab) clusterRole(ctx context.Context, name string) (*rbacv1.ClusterRole, error) {
	return l.Client.RbacV1().ClusterRoles().Get(ctx, name, metav1.GetOptions{})
}
