"""The navigation environment: map searches and a direction call over the Amap web service protocol, real or offline."""
