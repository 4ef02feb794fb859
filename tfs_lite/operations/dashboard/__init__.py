"""The dashboard: one page at ``/`` of the HTTP port, what it shows, and the same as JSON.

feature              the dashboard as a feature of a server
series, counters     four hours of numbers of each version, kept within a bound; what they are made from
overview, details    what the page shows, as JSON: of all models; of one
feed                 one snapshot a second for all viewers, as server-sent events, while there is a viewer
page                 the files of the page, with their headers
app, schemas         the routes, and what they answer
"""
